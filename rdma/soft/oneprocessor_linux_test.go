// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestPollersOnOneProcessor: two programs that poll on one processor do not spin until they are preempted. They wait in
// the kernel for each other's packets.
func TestPollersOnOneProcessor(t *testing.T) {
	const rounds = 300
	p := newPair(t, "127.0.3.31", "127.0.3.32", 128)
	var allowed, one unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	for cpu := 0; one.Count() == 0; cpu++ {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	done, elapsed := make(chan error, 2), make(chan time.Duration, 2)
	var ready sync.WaitGroup // both can receive
	ready.Add(2)
	play := func(qp *rdma.QP, mr *rdma.MR, first bool) {
		runtime.LockOSThread()         // never unlocked, so the thread ends with the goroutine
		before, err := processorTime() // of earlier goroutines on this thread
		err = errors.Join(err, unix.SchedSetaffinity(0, &one))
		if err == nil {
			err = player(qp, mr, first, rounds, &ready)
		}
		after, failed := processorTime()
		elapsed <- after - before
		done <- errors.Join(err, failed)
	}
	go play(p.a, p.here, true)
	go play(p.b, p.there, false)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	// processor time, which excludes other processes
	a, b := <-elapsed, <-elapsed
	t.Logf("%d round trips took %v and %v of processor time", rounds, a, b)
	assert.Less(t, a+b, rounds*10*time.Millisecond, "that is what the kernel's time slices take")
}

// processorTime returns the processor time of the current thread.
func processorTime() (time.Duration, error) {
	var used unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_THREAD, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), err
}

// player exchanges messages with the other player, polling all the time.
func player(qp *rdma.QP, mr *rdma.MR, first bool, rounds int, ready *sync.WaitGroup) error {
	receives := sync.OnceFunc(ready.Done)
	defer receives() // on failure, so that the other does not wait
	sends, err := rdma.NewSendBatch(1, 1, 0)
	if err != nil {
		return err
	}
	defer sends.Close()
	recvs, err := rdma.NewRecvBatch(1, 1)
	if err != nil {
		return err
	}
	defer recvs.Close()
	const sent, received = 1, 2
	sends.Send(sent).Add(mr.SGE(0, 64)).Signaled()
	recvs.Recv(received).Add(mr.SGE(64, 64))
	for range 8 {
		if _, err := qp.PostRecv(recvs); err != nil {
			return err
		}
	}
	receives()
	ready.Wait()
	wcs, left, open := make([]ibv.WC, 4), 0, 0
	send := func() error {
		_, err := qp.PostSend(sends)
		open++
		return err
	}
	if first {
		if err := send(); err != nil {
			return err
		}
	}
	for end := time.Now().Add(bound); left < rounds || open > 0; {
		n, err := qp.SendCQ().Poll(wcs)
		if err != nil {
			return err
		}
		if n == 0 && time.Now().After(end) {
			return errors.New("no message from the other player")
		}
		for i := range wcs[:n] {
			if err := rdma.CompletionErr(&wcs[i]); err != nil {
				return err
			}
			if wcs[i].WRID == sent {
				open--
				continue
			}
			if _, err := qp.PostRecv(recvs); err != nil {
				return err
			}
			if left++; !first || left < rounds {
				if err := send(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
