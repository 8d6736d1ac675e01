// SPDX-License-Identifier: BSD-2-Clause

package mlx5_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/mlx5"
)

// The process with the target, and its address.
const (
	envTarget     = "GOVERBS_TEST_DYNAMIC_TARGET"
	targetAddress = "127.0.90.2"
	processKey    = 0xfedcba9876543210
)

// targetState is what the target's process prints after each command.
type targetState struct {
	GID      string
	Number   uint32
	RKey     uint32
	Address  uint64
	Received int    // messages so far
	Digest   string // of the memory
}

// targetProcess runs commands, one a line: close and open the target, or neither.
func targetProcess(t *testing.T) {
	device, err := rdma.Open("soft@" + targetAddress)
	e := newDCEndOn(t, device, err, 1<<20)
	raw := e.gid.GID
	state := targetState{GID: hex.EncodeToString(raw.Raw()[:]), RKey: e.mr.RKey(), Address: e.mr.Address()}
	var dct *rdma.QP
	var srq *rdma.SRQ
	wcs := make([]ibv.WC, 16)
	in := bufio.NewScanner(os.Stdin)
	for line := "open"; ; line = in.Text() {
		switch line {
		case "open":
			dct, srq = e.target(processKey)
			e.recv(srq, 64, 4096)
			state.Number = dct.Num()
		case "close":
			require.NoError(t, dct.Close())
			state.Number = 0
		}
		for {
			n, err := e.cq.Poll(wcs)
			require.NoError(t, err)
			for _, wc := range wcs[:n] {
				if wc.Status == ibv.WC_SUCCESS {
					state.Received++
				}
			}
			if n == 0 {
				break
			}
		}
		sum := sha256.Sum256(e.mr.Bytes())
		state.Digest = hex.EncodeToString(sum[:])
		require.NoError(t, json.NewEncoder(os.Stdout).Encode(state))
		if !in.Scan() {
			return
		}
	}
}

// target is the process, for its peer.
type target struct {
	t     *testing.T
	in    io.Writer
	out   *json.Decoder
	state targetState
}

func (p *target) read() {
	p.t.Helper()
	require.NoError(p.t, p.out.Decode(&p.state))
}

func (p *target) do(command string) targetState {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, command)
	require.NoError(p.t, err)
	p.read()
	return p.state
}

// TestDynamicProcesses has a target in one process and initiators in another: traffic of many initiators, a wrong
// access key, a target that is destroyed while requests run, another one in its place, and a killed process.
func TestDynamicProcesses(t *testing.T) {
	if os.Getenv(envTarget) != "" {
		targetProcess(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDynamicProcesses$")
	cmd.Env = append(os.Environ(), envTarget+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	p := &target{t: t, in: in, out: json.NewDecoder(out)}
	p.read()
	device, err := rdma.Open("soft@127.0.90.1")
	e := newDCEndOn(t, device, err, 1<<20)
	e.timeout = 14
	var gid ibv.GID
	_, err = hex.Decode(gid.Raw()[:], []byte(p.state.GID))
	require.NoError(t, err)
	ah := e.ahTo(gid)

	// Each initiator writes its part of the memory, and sends a message.
	const initiators, part = 32, 16 << 10
	memory := make([]byte, 1<<20)
	var all []*rdma.QP
	number, base, rkey := p.state.Number, p.state.Address+512<<10, p.state.RKey
	write := func(dci *rdma.QP, i int, key uint64, id uint64) {
		e.post(dci, func(w *rdma.WRProgram) {
			mlx5.DC(w.Write(id, base+uint64(i*part), rkey).Signaled().Add(e.mr.SGE(uint64(i*part), part)), ah.Ptr(), number,
				key)
		})
	}
	content := func(seed byte) {
		for i := range initiators * part {
			e.mr.Bytes()[i] = byte(i) ^ byte(i>>8) ^ seed
		}
		copy(memory[512<<10:], e.mr.Bytes()[:initiators*part])
	}
	content(1)
	for i := range initiators {
		dci := e.initiator()
		all = append(all, dci)
		write(dci, i, processKey, 1)
		e.post(dci, func(w *rdma.WRProgram) {
			mlx5.DC(w.Send(2).Signaled().Add(e.mr.SGE(0, 3000)), ah.Ptr(), number, processKey)
		})
	}
	for _, wc := range e.wait(2 * initiators) {
		require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	}
	digest := func() string {
		sum := sha256.Sum256(memory)
		return hex.EncodeToString(sum[:])
	}
	received := func(n int) {
		t.Helper()
		for i := range n { // the messages that the target has received
			copy(memory[i*4096:], e.mr.Bytes()[:3000])
		}
	}
	received(initiators)
	state := p.do("state")
	assert.Equal(t, initiators, state.Received)
	assert.Equal(t, digest(), state.Digest)

	// A wrong access key breaks one initiator. Others go on, and nothing is written.
	bad := e.initiator()
	content(2)
	write(bad, 0, processKey^1<<60, 1)
	write(bad, 0, processKey, 2)
	wcs := e.wait(2)
	assert.Equal(t, ibv.WC_REM_ACCESS_ERR, wcs[0].Status)
	assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wcs[1].Status)
	assert.NotEqual(t, digest(), p.do("state").Digest)
	for i, dci := range all {
		write(dci, i, processKey, 1)
	}
	for _, wc := range e.wait(initiators) {
		require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	}
	assert.Equal(t, digest(), p.do("state").Digest)

	// The target is destroyed while requests run: requests succeed until one fails, and those behind it are flushed.
	const each = 40
	for range each {
		for i, dci := range all {
			write(dci, i, processKey, 3)
		}
	}
	closed := p.do("close")
	assert.Equal(t, digest(), closed.Digest, "the content that all requests write")
	failed := map[uint32]ibv.WCStatus{}
	for _, wc := range e.wait(each * initiators) {
		if before, broken := failed[wc.QPNum]; broken {
			assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status, "after %v", before)
		} else if wc.Status != ibv.WC_SUCCESS {
			assert.Equal(t, ibv.WC_RETRY_EXC_ERR, wc.Status)
			failed[wc.QPNum] = wc.Status
		}
	}
	t.Logf("%d of %d initiators had requests in flight when the target was destroyed", len(failed), initiators)
	content(3)
	late := e.initiator()
	write(late, 0, processKey, 1)
	assert.Equal(t, ibv.WC_RETRY_EXC_ERR, e.wait(1)[0].Status)
	assert.Equal(t, closed.Digest, p.do("state").Digest, "memory behind a target that is gone")

	// Another target. The same initiators work again, after a reset.
	number = p.do("open").Number
	assert.NotZero(t, number)
	for i, dci := range all {
		require.NoError(t, dci.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		e.connect(dci)
		write(dci, i, processKey, 1)
	}
	for _, wc := range e.wait(initiators) {
		require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	}
	assert.Equal(t, digest(), p.do("state").Digest)

	// The process is killed.
	require.NoError(t, cmd.Process.Kill())
	began := time.Now()
	write(all[0], 0, processKey, 1)
	assert.Equal(t, ibv.WC_RETRY_EXC_ERR, e.wait(1)[0].Status)
	assert.Less(t, time.Since(began), 15*time.Second)
}
