// A custom frontend: text to ids, a stream of ids from generate, text with every token's bytes.
//
//	go generate && go build && ./frontend "The capital of France is"
//
// It has no tokenizer: render encodes the prompt, and derender tells once what bytes each id stands
// for, whatever the kind of the tokenizer.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "triptych.example/frontend/triptychpb"
)

//go:generate sh generate.sh

func main() {
	generate := flag.String("generate", "127.0.0.1:9002", "host:port of generate's gRPC")
	render := flag.String("render", "http://127.0.0.1:8001", "render's base URL")
	derender := flag.String("derender", "http://127.0.0.1:8003", "derender's base URL")
	maxTokens := flag.Uint("max-tokens", 16, "most tokens of the answer")
	stop := flag.String("stop", "", "end the answer before this text")
	flag.Parse()
	if err := run(*generate, *render, *derender, flag.Arg(0), uint32(*maxTokens), *stop); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(generate, render, derender, prompt string, maxTokens uint32, stop string) error {
	ids, err := tokenize(render, prompt)
	if err != nil {
		return err
	}
	pieces, err := vocabulary(derender)
	if err != nil {
		return err
	}
	// grpc-go from 1.63 on prefers grpc.NewClient and insecure.NewCredentials, which this has not.
	conn, err := grpc.Dial(generate, grpc.WithInsecure())
	if err != nil {
		return err
	}
	defer conn.Close()
	request := &pb.GenerateRequest{
		TokenIds: ids,
		SamplingParams: &pb.SamplingParams{
			Temperature: proto.Float64(0),
			MaxTokens:   proto.Uint32(maxTokens),
			Logprobs:    proto.Int32(3),
		},
	}
	err = answer(pb.NewGenerateServiceClient(conn), request, pieces, []byte(stop))
	if failed, ok := status.FromError(err); err != nil && ok {
		return fmt.Errorf("generate: %v: %s", failed.Code(), failed.Message())
	}
	return err
}

// answer prints each token as it comes, then the text, up to stop where it is not empty.
func answer(
	client pb.GenerateServiceClient, request *pb.GenerateRequest, pieces map[uint32][]byte, stop []byte,
) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel() // frees what the request holds, when we leave before its end
	stream, err := client.Generate(ctx, request)
	if err != nil {
		return err
	}
	var text []byte
	var finish string
	for finish != "stop string" {
		delta, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, choice := range delta.Choices { // one, unless N says otherwise
			rows := split(choice.Logprobs, pieces)
			for i, id := range choice.TokenIds {
				text = append(text, pieces[id]...)
				fmt.Printf("%6d %s\n", id, strings.Join(rows[i], " "))
			}
			if choice.FinishReason != pb.FinishReason_FINISH_REASON_UNSPECIFIED {
				finish = choice.FinishReason.String()
			}
		}
		// generate knows no text, so a stop string is ours to find
		if end := bytes.Index(text, stop); len(stop) > 0 && end >= 0 {
			text, finish = text[:end], "stop string"
		}
	}
	fmt.Printf("text: %q\nfinish: %s\n", bytes.ToValidUTF8(text, []byte("\uFFFD")), finish)
	return nil
}

// split gives per position its candidates as text, the position's own token first.
func split(columns *pb.Logprobs, pieces map[uint32][]byte) [][]string {
	rows := make([][]string, len(columns.GetCounts()))
	next := 0
	for i, count := range columns.GetCounts() {
		for ; count > 0; count-- {
			probability := math.Exp(float64(columns.Logprobs[next]))
			piece := pieces[columns.TokenIds[next]]
			rows[i] = append(rows[i], fmt.Sprintf("%s %.4f", shown(piece), probability))
			next++
		}
	}
	return rows
}

// shown quotes a token; in hex where it holds a part of a character.
func shown(piece []byte) string {
	if utf8.Valid(piece) {
		return fmt.Sprintf("%q", piece)
	}
	return fmt.Sprintf("<% x>", piece)
}
