// SPDX-License-Identifier: BSD-2-Clause

// Command rpma-kv stores keys and values in the memory of another host by RDMA. Stored values survive if the processes
// of both hosts are killed:
//
//	rpma-kv put KEY VALUE                     both sides in this process, on software devices
//	rpma-kv -listen HOST:PORT -file FILE      the side with the memory
//	rpma-kv -to HOST:PORT put KEY VALUE       the side that stores a value and reads it back
//	rpma-kv -to HOST:PORT get KEY
package main

import (
	"context"
	"fmt"

	"github.com/goverbs/goverbs/examples/internal/remote"
)

const storeSize = 1 << 20

func main() {
	remote.Main("rpma-kv", remote.Command{Size: storeSize, Room: room}, run)
}

func run(ctx context.Context, m *remote.Memory, args []string) error {
	s, err := Open(ctx, m)
	if err != nil {
		return err
	}
	switch {
	case len(args) == 3 && args[0] == "put":
		if err := s.Put(ctx, args[1], []byte(args[2])); err != nil {
			return err
		}
	case len(args) == 2 && args[0] == "get":
	default:
		return fmt.Errorf("invalid arguments %q; use put KEY VALUE or get KEY", args)
	}
	value, ok, err := s.Get(ctx, args[1])
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("no value for key %q", args[1])
	}
	fmt.Printf("%s = %s (flushed for %v)\n", args[1], value, m.Flush())
	return nil
}
