// SPDX-License-Identifier: BSD-2-Clause

// Package s3rdma transfers the payload of S3 requests by RDMA, for S3 clients and servers written in Go.
//
// A [Transport] wraps the HTTP transport of an S3 client, for example of aws-sdk-go-v2 or minio-go. PutObject,
// UploadPart and GetObject use RDMA above a threshold. Other requests, and requests that the server declines, use HTTP.
// A [Handler] wraps the handler of an S3 server.
//
// The protocol is hipobj-rc-v2. The client announces a transfer (prepare), the server stages the object or allocates
// memory for it, and the client starts the transfer (ready). The sender then writes with immediate data over a reliable
// connection, which exists for one request only:
//
//	client                                    server
//	POST prepare: operation, size, identity ─▶ GET: replay the request, stage the object; PUT: stage memory
//	                                        ◀─ session, queue pair, address and key of the memory (PUT)
//	POST ready: queue pair, address and key ─▶ GET: write to the client's memory
//	PUT: write to the server's memory       ─▶ PUT: revoke the key, replay the request with the staged body
//	                                        ◀─ bytes transferred, ETag
//
// With Options.Direct and HandlerOptions.Direct, a transfer is a single request on queue pairs that both sides keep:
// see docs/s3.md.
//
// # Authentication
//
// This package does not verify signatures. The prepare request contains the headers of the original request, with its
// signature, and the handler replays exactly that request to the S3 server that it wraps: path, query, headers, and the
// body as HTTP would have transferred it. The S3 server thus authenticates the request that the SDK has signed, and
// checks its payload hash. For a PUT, this happens after the transfer.
//
// Other clients of the protocol do not send the original request. Options.Authorize can verify their signatures.
// Without it, an S3 server that requires signatures rejects the replayed requests of these clients.
//
// It is tested on software devices and on Soft-RoCE.
package s3rdma
