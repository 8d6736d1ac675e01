// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

// Command emulate runs a program over an emulated adapter, with libibverbs and the provider library of the primary
// release. Use it with go test -exec to rehearse tests for a real adapter.
//
//	emulate [-adapter mlx5] PROGRAM ARGUMENT...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/goverbs/goverbs/conformance/provider"
	"github.com/goverbs/goverbs/headers"
)

func main() {
	name := flag.String("adapter", provider.MLX5.Name, "mlx5, mlx4, erdma or efa")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	status, err := run(*name, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "emulate:", err)
		status = 2
	}
	os.Exit(status)
}

// run returns the program's exit status.
func run(name string, words []string) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "goverbs-emulate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	libraries, err := provider.Open(ctx, headers.Primary("rdma-core"))
	if err != nil {
		return 0, err
	}
	emulated, err := provider.Build(ctx, libraries, dir)
	if err != nil {
		return 0, err
	}
	for _, a := range []provider.Adapter{provider.MLX5, provider.MLX4, provider.ERDMA, provider.EFA} {
		if a.Name != name {
			continue
		}
		cmd := emulated.As(a).Command(ctx, words[0], words[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode(), nil
		}
		return 0, err
	}
	return 0, fmt.Errorf("adapter %q is not emulated", name)
}
