// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/rdma/stream"
)

// descriptors returns the number of open file descriptors of the process.
func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

// unchanged checks, when the test has ended, that it left no goroutines, descriptors or kernel resources, except
// librdmacm's contexts.
func unchanged(t testing.TB) {
	t.Helper()
	testbed.Kernel(t)
	list, err := getDevices() // makes librdmacm open the devices
	require.NoError(t, err)
	require.NoError(t, list.Close())
	before, err := testbed.Resources()
	require.NoError(t, err)
	for _, kind := range []string{"mr", "cq", "pd"} {
		if goPath { // the data path in Go keeps the device and the pool of streams open
			before[kind] = math.MaxUint64
		}
	}
	files, goroutines := descriptors(t), goruntime.NumGoroutine()
	t.Cleanup(func() {
		var left string
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			left, err = testbed.Leaks(before)
			if goruntime.NumGoroutine() <= goroutines && descriptors(t) <= files && err == nil && left == "" ||
				time.Now().After(deadline) {
				break
			}
		}
		if goruntime.NumGoroutine() > goroutines {
			assert.Fail(t, "goroutines are left", "%s", stacks{})
		}
		assert.LessOrEqual(t, descriptors(t), files, "descriptors")
		assert.NoError(t, err)
		assert.Empty(t, left)
	})
}

// stacks prints the stacks of all goroutines.
type stacks struct{}

func (stacks) String() string {
	b := make([]byte, 1<<20)
	return string(b[:goruntime.Stack(b, true)])
}

// TestManyConnections opens and closes connections, with a message in each direction: a thousand in make test-all.
func TestManyConnections(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		unchanged(t)
		config := on(stream.Config{Protocol: protocol, Buffer: 8 << 10})
		l, err := listenConfig(config).Listen(context.Background(), address(t, 0).String())
		require.NoError(t, err)
		defer l.Close() // after a failure, its resources would be reported as leaks of other tests
		done := make(chan error)
		go func() {
			var served sync.WaitGroup
			for {
				c, err := l.Accept()
				if err != nil {
					served.Wait()
					close(done)
					return
				}
				served.Add(1)
				go func() {
					defer served.Done()
					defer c.Close()
					if _, err := io.Copy(c, c); err != nil {
						t.Error(err)
					}
				}()
			}
		}()
		start := time.Now()
		const atOnce = 10
		all := testbed.Many(1000, 200)
		errs := make(chan error, all)
		next := make(chan int, all)
		for i := range all {
			next <- i
		}
		close(next)
		for range atOnce {
			go func() {
				for range next {
					errs <- func() error {
						c, err := dialer(config).Dial(withTimeout(t), l.Addr().String())
						if err != nil {
							return err
						}
						if _, err = c.Write([]byte("hello")); err != nil {
							return err
						}
						if err = c.CloseWrite(); err != nil {
							return err
						}
						got, err := io.ReadAll(c)
						if err == nil && string(got) != "hello" {
							err = errors.New("received data differs: " + string(got))
						}
						return errors.Join(err, c.Close())
					}()
				}
			}()
		}
		for range all {
			require.NoError(t, <-errs)
		}
		t.Log(all, "connections in", time.Since(start))
		require.NoError(t, l.Close())
		require.NoError(t, <-done)
	})
}

// Environment variables of TestVictim: the address to send to until it is killed, and the protocol.
const (
	envVictim       = "GOVERBS_CM_VICTIM"
	envVictimSpeaks = "GOVERBS_CM_VICTIM_SPEAKS"
)

func TestVictim(t *testing.T) {
	to := os.Getenv(envVictim)
	if to == "" {
		t.Skip("is run by TestPeerKilled")
	}
	protocol, err := strconv.Atoi(os.Getenv(envVictimSpeaks))
	require.NoError(t, err)
	c, err := dialer(on(stream.Config{Protocol: stream.Protocol(protocol)})).Dial(withTimeout(t), to)
	require.NoError(t, err)
	p := make([]byte, 64<<10)
	for {
		_, err := c.Write(p)
		require.NoError(t, err)
	}
}

// TestPeerKilled kills the other process during a transfer. The error is immediate, since the peer's kernel closes the
// connection.
func TestPeerKilled(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		inGuest(t, "the peer is another process")
		unchanged(t)
		l, err := listenConfig(on(stream.Config{Protocol: protocol})).Listen(withTimeout(t), address(t, 0).String())
		require.NoError(t, err)
		self, err := os.Executable()
		require.NoError(t, err)
		victim := exec.Command(self, "-test.run=^TestVictim$")
		victim.Env = append(os.Environ(), envVictim+"="+l.Addr().String(),
			envVictimSpeaks+"="+strconv.Itoa(int(protocol)))
		require.NoError(t, victim.Start())
		c, err := l.AcceptRDMA(withTimeout(t))
		require.NoError(t, err)
		n, err := io.CopyN(io.Discard, c, 2<<20)
		require.NoError(t, err, "%d bytes", n)
		require.NoError(t, victim.Process.Kill())
		killed := time.Now()
		require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.Copy(io.Discard, c)
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		t.Log("noticed after", time.Since(killed), err)
		_, err = c.Write(make([]byte, 1<<20))
		assert.Error(t, err)
		assert.False(t, errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
		assert.ErrorContains(t, victim.Wait(), "killed")
	})
}

// envReader is the address for TestReader, a process that connects and never reads.
const envReader = "GOVERBS_CM_READER"

func TestReader(t *testing.T) {
	to := os.Getenv(envReader)
	if to == "" {
		t.Skip("is run by TestReaderKilled")
	}
	protocol, err := strconv.Atoi(os.Getenv(envVictimSpeaks))
	require.NoError(t, err)
	_, err = dialer(on(stream.Config{Protocol: stream.Protocol(protocol)})).Dial(withTimeout(t), to)
	require.NoError(t, err)
	time.Sleep(time.Hour)
}

// TestReaderKilled kills the reading process and checks that Write or Close returns an error.
func TestReaderKilled(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		inGuest(t, "the peer is another process")
		unchanged(t)
		l, err := listenConfig(on(stream.Config{Protocol: protocol})).Listen(withTimeout(t), address(t, 0).String())
		require.NoError(t, err)
		self, err := os.Executable()
		require.NoError(t, err)
		for _, delay := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond} {
			reader := exec.Command(self, "-test.run=^TestReader$")
			reader.Env = append(os.Environ(), envReader+"="+l.Addr().String(),
				envVictimSpeaks+"="+strconv.Itoa(int(protocol)))
			require.NoError(t, reader.Start())
			c, err := l.AcceptRDMA(withTimeout(t))
			require.NoError(t, err)
			require.NoError(t, reader.Process.Kill())
			time.Sleep(delay)
			_, wrote := c.Write(make([]byte, 200_000))
			assert.ErrorContains(t, reader.Wait(), "killed")
			err = c.Close()
			t.Log("write:", wrote, "close:", err)
			assert.Error(t, errors.Join(wrote, err))
		}
		require.NoError(t, l.Close())
	})
}

// TestStreamLeaks checks for leaks after each way in which a stream can end.
func TestStreamLeaks(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		unchanged(t)
		l, err := listenConfig(on(stream.Config{Protocol: protocol})).Listen(withTimeout(t), address(t, 0).String())
		require.NoError(t, err)
		_, err = listenConfig(on(stream.Config{Protocol: protocol})).Listen(context.Background(), l.Addr().String())
		assert.ErrorIs(t, err, syscall.EADDRINUSE)
		c, err := dialer(on(stream.Config{Protocol: protocol})).Dial(withTimeout(t), l.Addr().String()) // not accepted
		require.NoError(t, err)
		require.NoError(t, l.Close())
		_, err = io.ReadAll(c)
		switch { // the listener disconnected, or had not seen the connection
		case err == nil:
		case testbed.Lossy() && errors.Is(err, syscall.ETIMEDOUT): // retries take no time and were exhausted before
		default:
			assert.ErrorIs(t, err, syscall.ECONNRESET)
		}
		require.NoError(t, c.Close())
		_, err = l.Accept()
		assert.ErrorContains(t, err, "closed")
		long := 100 * time.Millisecond
		if testbed.Kernel(t) == testbed.Soft {
			long = opTimeout
		}
		ctx, cancel := context.WithTimeout(context.Background(), long)
		defer cancel()
		_, err = dialer(on(stream.Config{Protocol: protocol})).Dial(ctx, "10.77.0.98:1") // unused address
		switch {
		case testbed.Kernel(t) == testbed.Soft: // the wire has no other destinations
			assert.ErrorIs(t, err, syscall.EHOSTUNREACH)
		case !errors.Is(err, syscall.ETIMEDOUT): // the address resolution times out at the same time
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}
		_, err = dialer(on(stream.Config{Protocol: protocol})).Dial(withTimeout(t), "10.77.0.1")
		assert.ErrorContains(t, err, "missing port")
		assert.False(t, strings.Contains(err.Error(), "%!"))
	})
}

// TestStreamHeartbeat checks that a goroutine that only reads notices when the peer vanishes silently.
func TestStreamHeartbeat(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		a, b := pipe(t, stream.Config{Protocol: protocol, Heartbeat: 50 * time.Millisecond, AckTimeout: 10})
		time.Sleep(300 * time.Millisecond)
		for range 3 { // no effect while the peer is alive
			_, err := a.Write([]byte("x"))
			require.NoError(t, err)
			_, err = b.Read(make([]byte, 1))
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
	})
}
