// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// counted returns the increments of a device's counters while f runs, without zeros.
func counted(f *soft.Fabric, device string, meanwhile func()) map[string]uint64 {
	before := f.HWCounters(device)
	meanwhile()
	after := f.HWCounters(device)
	for name := range after {
		if after[name] -= before[name]; after[name] == 0 {
			delete(after, name)
		}
	}
	return after
}

type numbers = map[string]uint64

// TestCountersOfTraffic checks the counters of both sides for a few requests, packet by packet.
func TestCountersOfTraffic(t *testing.T) {
	f, _ := wiredTwo(t, false)
	a, b := newRunner(t, f[0], "soft0", ibv.QPT_RC), newRunner(t, f[1], "soft0", ibv.QPT_RC)
	a.connect(b, everyRequestMTU)
	b.connect(a, everyRequestMTU)
	b.receive()
	var remote numbers
	here := counted(f[0], "soft0", func() {
		remote = counted(f[1], "soft0", func() {
			sent := func(i int) uint64 { return f[i].HWCounters("soft0")["sent_pkts"] }
			asked, answered := sent(0), sent(1)
			s := a.mr.SGE(0, 3000) // 3 packets
			a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.Send(1).Add(s) })
			a.do(b, func(p *rdma.WRProgram) rdma.WRRequest { return p.Read(2, b.mr.Address(), b.mr.RKey()).Add(s) })
			// A packet is counted after the system call that sends it, so the peer may receive the last one before.
			require.Eventually(t, func() bool { return sent(0) >= asked+4 && sent(1) >= answered+4 }, 10*time.Second,
				time.Millisecond)
			f[1].SetLink("soft0", false)
			f[1].SetLink("soft0", true)
		})
	})
	const data = 2*(28+12+4+1024) + 28 + 12 + 4 + 952 // with the headers of IP, UDP and BTH, and the ICRC
	asks, answers := uint64(data+28+12+16+4), uint64(28+12+4+4+data+2*4)
	assert.Equal(t, numbers{"sent_pkts": 4, "rcvd_pkts": 4, "sent_bytes": asks, "rcvd_bytes": answers,
		"rdma_sends": 1}, here)
	assert.Equal(t, numbers{"sent_pkts": 4, "rcvd_pkts": 4, "sent_bytes": answers, "rcvd_bytes": asks,
		"rdma_recvs": 1, "link_downed": 1}, remote)
	assert.Equal(t, soft.Counters{}, f[0].Counters())
	all, err := a.device.HWCounters(1)
	require.NoError(t, err)
	assert.Equal(t, f[0].HWCounters("soft0"), all)
	_, err = a.device.HWCounters(2)
	assert.ErrorContains(t, err, "no port 2")
	assert.Nil(t, f[0].HWCounters("soft1"))
}

// TestCountersOfFailures: failures of a connection are counted by the side where they occur, consistently with the
// fabric's counters.
func TestCountersOfFailures(t *testing.T) {
	f, _ := wiredTwo(t, false)
	pairs := func(timeout uint8) (a, b *runner) {
		a, b = newRunner(t, f[0], "soft0", ibv.QPT_RC), newRunner(t, f[1], "soft0", ibv.QPT_RC)
		for r, peer := range map[*runner]*runner{a: b, b: a} {
			attr, err := r.qp.ConnectAttr(peer.end)
			require.NoError(t, err)
			attr.Timeout, attr.RetryCnt, attr.RNRRetry, attr.MinRNRTimer = timeout, 2, 3, 1 // 10 µs
			require.NoError(t, r.qp.ConnectWith(attr))
		}
		return a, b
	}
	fails := func(a *runner, want ibv.WCStatus, request func(p *rdma.WRProgram) rdma.WRRequest) {
		p, err := a.qp.NewWRProgram()
		require.NoError(t, err)
		request(p).Signaled()
		require.NoError(t, a.qp.PostProgram(p))
		wcs := make([]ibv.WC, 1)
		_, err = a.cq.WaitBusy(t.Context(), wcs)
		require.NoError(t, err)
		require.Equal(t, want, wcs[0].Status)
	}
	runBoth := func(meanwhile func()) (local, remote numbers) {
		local = counted(f[0], "soft0", func() { remote = counted(f[1], "soft0", meanwhile) })
		for _, c := range []numbers{local, remote} {
			for _, name := range []string{"sent_pkts", "rcvd_pkts", "sent_bytes", "rcvd_bytes"} {
				delete(c, name)
			}
		}
		return local, remote
	}
	const short, long = 8, 20 // 1 ms, 4 s
	a, b := pairs(long)
	here, there := runBoth(func() {
		fails(a, ibv.WC_RNR_RETRY_EXC_ERR, func(p *rdma.WRProgram) rdma.WRRequest {
			return p.Send(1).Add(a.mr.SGE(0, 8))
		})
	})
	assert.Equal(t, numbers{"rcvd_rnr_err": 4, "retry_rnr_exceeded_err": 1, "retrans_pkts": 3, "rdma_sends": 1}, here)
	assert.Equal(t, numbers{"send_rnr_err": 4}, there)
	assert.EqualValues(t, 4, f[0].Counters().NotReady)
	a, b = pairs(long)
	here, there = runBoth(func() {
		fails(a, ibv.WC_REM_ACCESS_ERR, func(p *rdma.WRProgram) rdma.WRRequest {
			return p.Write(1, b.mr.Address(), b.mr.RKey()+1).Add(a.mr.SGE(0, 8))
		})
	})
	assert.Equal(t, numbers{"req_remote_access_errors": 1}, here)
	assert.Equal(t, numbers{"resp_remote_access_errors": 1}, there)
	a, b = pairs(short)
	here, there = runBoth(func() {
		f[1].SetLink("soft0", false)
		fails(a, ibv.WC_RETRY_EXC_ERR, func(p *rdma.WRProgram) rdma.WRRequest {
			return p.Write(1, b.mr.Address(), b.mr.RKey()).Add(a.mr.SGE(0, 8))
		})
	})
	assert.Equal(t, numbers{"local_ack_timeout_err": 3, "completer_retry_err": 2, "retrans_pkts": 2,
		"retry_exceeded_err": 1}, here)
	assert.Equal(t, uint64(1), there["link_downed"])
	assert.LessOrEqual(t, there["rx_link_down"], uint64(3)) // one more may be in the socket
	assert.EqualValues(t, 2, f[0].Counters().Retries)
	require.True(t, f[0].RemoveDevice("soft0"))
	assert.EqualValues(t, 2, f[0].Counters().Retries, "counters of the fabric stay")
}

// TestCountersOfLoss: with lost, repeated, delayed and damaged packets, both ends count the recovery, and agree.
func TestCountersOfLoss(t *testing.T) {
	t.Setenv("GOVERBS_SOFT_WIRE", "lossy:4:10")
	f, err := soft.New(soft.Options{Virtual: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	a, b := newRunner(t, f, "soft0", ibv.QPT_RC), newRunner(t, f, "soft1", ibv.QPT_RC)
	a.connect(b, everyRequestMTU)
	b.connect(a, everyRequestMTU)
	for range 20 {
		everyRequest(a, b, everySize)
	}
	local, remote, all := f.HWCounters("soft0"), f.HWCounters("soft1"), f.Counters()
	for _, name := range []string{"retrans_pkts", "completer_retry_err", "local_ack_timeout_err", "implied_nak_seq_err",
		"rcvd_seq_err", "rx_late_ack"} {
		assert.NotZero(t, local[name], name)
	}
	for _, name := range []string{"duplicate_request", "out_of_seq_request", "rx_behind_gap"} {
		assert.NotZero(t, remote[name], name)
	}
	assert.Zero(t, local["retry_exceeded_err"]+remote["retry_exceeded_err"])
	assert.LessOrEqual(t, local["rcvd_seq_err"], 2*remote["out_of_seq_request"], "a NAK may come twice")
	assert.Equal(t, local["completer_retry_err"]+remote["completer_retry_err"], all.Retries)
	assert.Equal(t, local["out_of_seq_request"]+remote["out_of_seq_request"], all.Gaps)
	assert.Equal(t, local["duplicate_request"]+remote["duplicate_request"], all.Duplicates)
	assert.Equal(t, uint64(20*3*len(everySize)), local["rdma_sends"])
	assert.Equal(t, uint64(20*4*len(everySize)), remote["rdma_recvs"])
}

// TestCountersOfDatagrams: reasons for dropping datagrams are counted.
func TestCountersOfDatagrams(t *testing.T) {
	f, _ := wiredTwo(t, false)
	a, b := newMember(t, f[0]), newMember(t, f[1])
	to, err := b.qp.Endpoint()
	require.NoError(t, err)
	path, err := a.qp.Path(to)
	require.NoError(t, err)
	ah, err := a.qp.PD().CreateAH(&path)
	require.NoError(t, err)
	defer ah.Close()
	sends, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	defer sends.Close()
	send := func(number, key uint32) {
		before := f[1].HWCounters("soft0")["rcvd_pkts"]
		sends.Reset()
		sends.Send(1).UD(ah.Ptr(), number, key).Add(a.mr.SGE(0, 8)).Signaled()
		_, err := a.qp.PostSend(sends)
		require.NoError(t, err)
		_, err = a.qp.SendCQ().WaitBusy(t.Context(), make([]ibv.WC, 1))
		require.NoError(t, err)
		waitFor(t, func() bool { return f[1].HWCounters("soft0")["rcvd_pkts"] > before })
	}
	got := counted(f[1], "soft0", func() {
		send(b.qp.Num(), rdma.DefaultQKey+1)
		send(b.qp.Num()+1, rdma.DefaultQKey)
		for range 9 { // it has 8 receives
			send(b.qp.Num(), rdma.DefaultQKey)
		}
	})
	assert.Equal(t, numbers{"rcvd_pkts": 11, "rcvd_bytes": 11 * (28 + 12 + 8 + 8 + 4), "bad_qkey": 1,
		"rx_unknown_qp": 1, "rdma_recvs": 8, "out_of_buffer": 1}, got)
	device, err := rdma.OpenOn(f[1], "soft0")
	require.NoError(t, err)
	defer device.Close()
	port, err := device.Port(1)
	require.NoError(t, err)
	assert.EqualValues(t, 1, port.QKeyViolCntr)
}

// TestCountersAreDocumented: docs/wire.md has a row for exactly these counters.
func TestCountersAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "\n| counter |")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n\n")
	var explained []string
	for line := range strings.Lines(section) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok {
			for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
				explained = append(explained, name[1])
			}
		}
	}
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{
		{Address: netip.MustParseAddr("127.0.2.20"), Wire: true}}})
	require.NoError(t, err)
	defer f.Close()
	assert.ElementsMatch(t, slices.Collect(maps.Keys(f.HWCounters("soft0"))), explained)
}
