# Writes triptychpb, the code of generate.proto. `go generate` runs it; it needs protoc, protoc-gen-go
# and protoc-gen-go-grpc.
set -eu
module=triptych.example/frontend
file=triptych/v1/generate.proto
protoc -I "${PROTO:-../../proto}" \
  --go_out=. --go_opt=module=$module --go_opt=M$file=$module/triptychpb \
  --go-grpc_out=. --go-grpc_opt=module=$module --go-grpc_opt=M$file=$module/triptychpb \
  $file
