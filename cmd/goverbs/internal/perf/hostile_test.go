// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestHostilePeer checks that an end fails soon after invalid data in any step of the exchange, accesses no other
// memory and allocates little.
func TestHostilePeer(t *testing.T) {
	for seed := range 60 {
		o := kinds[seed%len(kinds)]
		o.Silence = 300 * time.Millisecond
		o = complete(t, o, "64")
		t.Run(fmt.Sprintf("%v/%d", &o, seed), func(t *testing.T) {
			t.Parallel()
			o.Device = "soft0"
			rnd := rand.New(rand.NewPCG(uint64(seed), 1))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if !assert.NoError(t, err) {
				return
			}
			o.Port = l.Addr().(*net.TCPAddr).Port
			clientFirst := seed/len(kinds)%2 == 0 // the hostile end is the client
			if clientFirst {
				assert.NoError(t, l.Close())
				o.Waiting = func(string) {
					go func() {
						c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
						if assert.NoError(t, err) {
							hostile(c, rnd, &o, true)
						}
					}()
				}
			} else {
				defer l.Close()
				o.Peer = "127.0.0.1"
				go func() {
					if c, err := l.Accept(); err == nil {
						hostile(c, rnd, &o, false)
					}
				}()
			}
			done := make(chan error, 1)
			go func() { _, err := Run(t.Context(), &o); done <- err }()
			select {
			case err := <-done:
				assert.Error(t, err)
			case <-time.After(time.Minute):
				t.Error("still running")
			}
		})
	}
}

// hostile runs the exchange up to a random step and then sends invalid data.
func hostile(c net.Conn, rnd *rand.Rand, o *Options, client bool) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // a server waits as long as its client is connected
	k := keys{reads: 1, qpn: rnd.Uint32() & 0xffffff, rkey: rnd.Uint32(), address: rnd.Uint64(), global: true}
	copy(k.gid.Raw()[10:], "\xff\xff\x7f\x00\x00\x01")
	first := []byte("6.06\x00goverbs\x00\x00\x00\x00")
	if rnd.IntN(2) == 0 {
		first = []byte("6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	}
	steps := [][]byte{first, {0, 0, 16, 0}, {0, 0, 0, 64}, {'3', 0}}
	if first[5] != 0 {
		steps = append(steps, o.task(true).put())
	}
	for range 4 {
		steps = append(steps, textKeys{}.put(&k))
	}
	bad := rnd.IntN(len(steps) + 1)
	for i, message := range steps {
		if i == bad {
			message = make([]byte, rnd.IntN(4096))
			for j := range message {
				message[j] = byte(rnd.Uint32())
			}
		}
		if !client {
			if _, err := io.ReadFull(c, make([]byte, len(steps[i]))); err != nil {
				return
			}
		}
		if _, err := c.Write(message); err != nil {
			return
		}
		if client {
			if _, err := io.ReadFull(c, make([]byte, len(steps[i]))); err != nil {
				return
			}
		}
	}
	_, _ = io.Copy(io.Discard, c) // and sends nothing more
}
