// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/examples/valkey/valkeyrdma"
)

// store is a server in Go for the commands that the tests and Valkey's programs send.
type store struct {
	mu   sync.Mutex
	kept map[string]string // guarded by mu
}

// serveStore runs a store until the test ends, and returns its address.
func serveStore(t *testing.T, config *valkeyrdma.Config, at string) string {
	brief := *config
	brief.Linger = 100 * time.Millisecond // do not wait long for a killed peer
	brief.HandshakeTimeout = time.Minute
	l, err := brief.Listen(t.Context(), at)
	require.NoError(t, err)
	s := &store{kept: map[string]string{}}
	var serving sync.WaitGroup
	var conns sync.Map
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(c, nil)
			serving.Go(func() {
				defer c.Close()
				if err := s.serve(c); err != io.EOF && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		}
	})
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		for c := range conns.Range {
			c.(net.Conn).Close()
		}
		serving.Wait()
	})
	return l.Addr().String()
}

func (s *store) serve(c net.Conn) error {
	in, out := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
	for {
		command, err := readCommand(in)
		if err != nil {
			return err
		}
		s.answer(out, command)
		if in.Buffered() == 0 { // send the replies to a pipeline together
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

func (s *store) answer(out *bufio.Writer, command []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch name := strings.ToUpper(command[0]); {
	case name == "PING":
		out.WriteString("+PONG\r\n")
	case name == "SET" && len(command) == 3:
		s.kept[command[1]] = command[2]
		out.WriteString("+OK\r\n")
	case name == "GET" && len(command) == 2:
		if v, ok := s.kept[command[1]]; ok {
			fmt.Fprintf(out, "$%d\r\n%s\r\n", len(v), v)
		} else {
			out.WriteString("$-1\r\n")
		}
	case name == "HELLO":
		out.WriteString("%2\r\n+version\r\n+8.1.1\r\n+proto\r\n:3\r\n")
	case name == "BGSAVE":
		out.WriteString("+Background saving started\r\n")
	case name == "CLIENT":
		out.WriteString("+OK\r\n")
	default:
		fmt.Fprintf(out, "-ERR unknown command '%s'\r\n", name)
	}
}

// readCommand reads an array of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		command[i] = string(b[:size])
	}
	return command, nil
}

func readLength(in *bufio.Reader, kind byte) (n int, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(line, string(kind)+"%d\r\n", &n); err != nil || n < 0 || n > 64<<20 {
		return 0, fmt.Errorf("unexpected %q from the client", line)
	}
	return n, nil
}
