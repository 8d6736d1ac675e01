// SPDX-License-Identifier: BSD-2-Clause

// Package s3rdma moves the payload of S3 requests by RDMA, with S3 clients and servers written in Go.
//
// A [Transport] wraps the HTTP transport of an S3 client, aws-sdk-go-v2 or minio-go for example. PutObject, UploadPart
// and GetObject above a threshold move by RDMA. Everything else, and everything that a server declines, moves by HTTP.
// A [Handler] wraps the handler of an S3 server.
//
// The protocol is hipobj-rc-v2. The client announces a transfer (prepare), the server stages the object or memory for
// it, the client starts the transfer (ready), and the sender writes with immediate data over a reliable connection that
// exists for one request:
//
//	client                                    server
//	POST prepare: operation, size, identity ─▶ GET: replay the request, stage the object; PUT: stage memory
//	                                        ◀─ session, queue pair, address and key of the memory (PUT)
//	POST ready: queue pair, address and key ─▶ GET: write to the client's memory
//	PUT: write to the server's memory       ─▶ PUT: revoke the key, replay the request with the staged body
//	                                        ◀─ bytes transferred, ETag
//
// With Options.Direct and HandlerOptions.Direct, a transfer is a single request, on queue pairs that both ends keep; see
// docs/s3.md.
//
// # Authentication
//
// Neither end of this package verifies signatures. The client repeats the headers of the original request, with its
// signature, inside the prepare request, and the handler replays exactly that request to the S3 server that it wraps:
// path, query, headers, and the body as it would have been sent over HTTP. So the S3 server authenticates the request
// that the SDK signed, and checks its payload hash. For a PUT this happens after the transfer.
//
// Other clients of the protocol do not repeat the original request. HandlerOptions.Authorize verifies their signatures;
// without it, an S3 server that requires signatures rejects their replayed requests.
//
// It is tested on software devices and on Soft-RoCE.
package s3rdma
