// SPDX-License-Identifier: BSD-2-Clause

// Command laptop puts and gets an S3 object by RDMA, between a client and a server on software devices.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/s3rdma"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer) error {
	ctx := context.Background()

	// The server: any http.Handler that speaks S3, behind s3rdma.Handler.
	serverDevice, err := rdma.Open("soft1") // on hardware: mlx5_0, for example
	if err != nil {
		return err
	}
	defer serverDevice.Close()
	handler, err := s3rdma.NewHandler(gofakes3.New(s3mem.New()).Server(), s3rdma.HandlerOptions{Device: serverDevice})
	if err != nil {
		return err
	}
	defer handler.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	defer server.Close()

	// The client: any S3 SDK, with another transport.
	clientDevice, err := rdma.Open("soft0")
	if err != nil {
		return err
	}
	defer clientDevice.Close()
	keys := credentials.NewStaticCredentialsProvider("key", "secret", "")
	sign := func(ctx context.Context, r *http.Request) error {
		c, err := keys.Retrieve(ctx)
		if err != nil {
			return err
		}
		return v4.NewSigner().SignHTTP(ctx, c, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", "us-east-1", time.Now())
	}
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	transport, err := s3rdma.NewTransport(base, s3rdma.Options{Device: clientDevice, Signer: s3rdma.SignerFunc(sign)})
	if err != nil {
		return err
	}
	defer transport.Close()
	client := s3.New(s3.Options{Region: "us-east-1", Credentials: keys, UsePathStyle: true,
		BaseEndpoint: aws.String("http://" + listener.Addr().String()), HTTPClient: &http.Client{Transport: transport}})

	// From here on, this is an ordinary program.
	bucket, key := aws.String("bucket"), aws.String("key")
	if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: bucket}); err != nil {
		return err
	}
	data := bytes.Repeat([]byte("goverbs "), 1<<20)
	put := &s3.PutObjectInput{Bucket: bucket, Key: key, Body: bytes.NewReader(data)}
	if _, err := client.PutObject(ctx, put); err != nil {
		return err
	}
	object, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key})
	if err != nil {
		return err
	}
	defer object.Body.Close()
	got, err := io.ReadAll(object.Body)
	if err != nil {
		return err
	}
	stats := transport.Stats()
	fmt.Fprintln(out, "the same bytes:", bytes.Equal(got, data))
	fmt.Fprintln(out, "by RDMA:", stats.Puts, "put,", stats.Gets, "get")
	return nil
}
