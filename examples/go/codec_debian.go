//go:build debian

package main

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

// Debian's grpc package is built on a golang/protobuf that is older than the code which its protoc
// plugin writes, so that messages have to be coded here. Nowhere else is this needed.
func init() {
	encoding.RegisterCodec(codec{})
}

type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(message any) ([]byte, error) {
	return proto.Marshal(message.(proto.Message))
}

func (codec) Unmarshal(data []byte, message any) error {
	return proto.Unmarshal(data, message.(proto.Message))
}
