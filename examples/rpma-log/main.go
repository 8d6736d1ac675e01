// SPDX-License-Identifier: BSD-2-Clause

// Command rpma-log appends records to a log in the memory of another host by RDMA and reads the log back. Records
// survive if the processes of both hosts are killed:
//
//	rpma-log TEXT...                          both sides in this process, on software devices
//	rpma-log -listen HOST:PORT -file FILE     the side with the memory
//	rpma-log -to HOST:PORT TEXT...            the side that appends and reads
package main

import (
	"context"
	"fmt"

	"github.com/goverbs/goverbs/examples/internal/remote"
)

const logSize = 1 << 20

func main() {
	remote.Main("rpma-log", remote.Command{Size: logSize, Room: maxRecord}, run)
}

// run appends texts and prints the log.
func run(ctx context.Context, m *remote.Memory, texts []string) error {
	l, err := Open(ctx, m)
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		texts = []string{"one", "two", "three"}
	}
	for _, text := range texts {
		if err := l.Append(ctx, []byte(text)); err != nil {
			return err
		}
	}
	fmt.Printf("appended %d records to a remote log, each flushed for %v; the log contains:\n", len(texts), m.Flush())
	return l.Read(ctx, func(i int, record []byte) error {
		fmt.Printf("  %d %s\n", i, record)
		return nil
	})
}
