// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/ping"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// network is a simulated network between two hosts.
type network struct {
	own, other string // endpoints
	pkeys      string // of the peer
	most       int    // payload of the largest packet that arrives
	fails      map[string]ping.Failure
	refused    error
	blocked    error // of TCP between the GIDs' addresses
}

func (p *network) probes() Probes {
	return Probes{
		UDP: func(context.Context, string) error { return p.refused },
		TCP: func(context.Context, netip.Addr, netip.Addr, int) error { return p.blocked },
		Ping: func(_ context.Context, o *ping.Options) (*ping.Report, error) {
			r := &ping.Report{Peer: o.Peer, Device: "rxe0"}
			for _, kind := range o.Kinds {
				one := ping.Result{Kind: kind, Own: p.own, Other: p.other, PKeys: []string{"0xffff"},
					PeerPKeys: []string{p.pkeys}}
				if f, ok := p.fails[kind]; ok {
					one.Failure = &f
				} else if o.Size > p.most {
					one.Failure = &ping.Failure{Step: "ping", What: "no answer"}
				}
				r.Results = append(r.Results, one)
			}
			return r, nil
		},
	}
}

func end(address string, mtu int) string { return fmt.Sprintf("qpn=0x11 gid=%s mtu=%d", address, mtu) }

// TestPairFaults checks that each fault between two hosts yields exactly one finding.
func TestPairFaults(t *testing.T) {
	all := func(step string) map[string]ping.Failure {
		f := ping.Failure{Step: step, What: "it failed", Fixes: []string{"fix it"}}
		return map[string]ping.Failure{ping.RC: f, ping.UD: f, ping.CM: f}
	}
	one := func(kind string) map[string]ping.Failure {
		return map[string]ping.Failure{kind: {Step: "ping", What: "it failed"}}
	}
	seen := map[string]bool{}
	for id, change := range map[string]func(p *network){
		"":           func(*network) {},
		"pair.tcp":   func(p *network) { p.fails = all("connect over TCP") },
		"pair.serve": func(p *network) { p.fails = all("exchange endpoints") },
		"pair.answer": func(p *network) {
			p.fails, p.other = all("exchange endpoints"), ""
			for kind, f := range p.fails {
				f.Answered = true
				p.fails[kind] = f
			}
		},
		"pair.roce": func(p *network) { p.fails, p.blocked = all("ping"), syscall.ECONNREFUSED },
		"pair.refused": func(p *network) {
			p.fails, p.refused, p.blocked = all("ping"), syscall.ECONNREFUSED, syscall.ECONNREFUSED
		},
		"pair.firewall": func(p *network) { p.fails = all("ping") },
		"pair.address":  func(p *network) { p.fails, p.blocked = all("connect the queue pair"), syscall.EHOSTUNREACH },
		"pair.rc":       func(p *network) { p.fails = one(ping.RC) },
		"pair.ud":       func(p *network) { p.fails = one(ping.UD) },
		"pair.cm":       func(p *network) { p.fails = one(ping.CM) },
		"pair.gid":      func(p *network) { p.fails, p.other = all("ping"), end("2001:db8::1", 4096) },
		"pair.pkey":     func(p *network) { p.pkeys = "0x8001" },
		"pair.mtu":      func(p *network) { p.most = 1400 },
		"pair.mtus":     func(p *network) { p.other = end("::ffff:192.0.2.2", 1024) },
	} {
		seen[id] = true
		p := &network{own: end("::ffff:192.0.2.1", 4096), other: end("::ffff:192.0.2.2", 4096),
			pkeys: "0x7fff", most: 5000}
		change(p)
		r := &Report{}
		require.NoError(t, ExaminePair(t.Context(), p.probes(), ping.Options{Peer: "there", Size: 64}, r))
		if id == "" {
			assert.Empty(t, r.Findings)
			assert.Equal(t, 4096, r.Pair.PathMTU)
			continue
		}
		if assert.Len(t, r.Findings, 1, id) {
			assert.Equal(t, id, r.Findings[0].Cause)
			assert.NotContains(t, r.Findings[0].Fix+r.Findings[0].What, "%!", id)
		}
		if id == "pair.mtu" {
			assert.Equal(t, 1024, r.Pair.PathMTU)
		}
	}
	probes := &network{own: end("::ffff:192.0.2.1", 4096), other: end("::ffff:192.0.2.2", 4096), fails: all("ping"),
		pkeys: "0xffff", refused: syscall.EPERM}
	r := &Report{}
	require.NoError(t, ExaminePair(t.Context(), probes.probes(), ping.Options{Peer: "there"}, r))
	require.Len(t, r.Findings, 1)
	assert.Contains(t, r.Findings[0].What, "on this host")
	assert.Len(t, r.Pair.Pings.Results, 2, "a connection manager message would break Soft-RoCE of Linux 6.12")
	r = &Report{Findings: []Finding{found("namespace.netdev", "rxe0 port 1", "", "eth0", "eth0")}}
	p := &network{own: end("::ffff:192.0.2.1", 4096), other: end("::ffff:192.0.2.2", 4096), fails: all("ping")}
	require.NoError(t, ExaminePair(t.Context(), p.probes(), ping.Options{Peer: "there"}, r))
	assert.Len(t, r.Findings, 1, "a failure that the host's problem explains is reported twice")
	for _, c := range causes {
		assert.True(t, c.id[:5] != "pair." || seen[c.id], "no fault tests %s", c.id)
	}
}

// TestPair checks the report about two software devices with addresses.
func TestPair(t *testing.T) {
	s := &ping.Server{Device: "soft@127.79.1.1", GIDIndex: -1, Port: 18597, CMPort: 17175, PingPong: ping.RC,
		Log: func(string) {}}
	require.NoError(t, s.Listen())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	o := ping.Options{Device: "soft@127.79.1.2", GIDIndex: -1, Peer: "127.79.1.1", Port: 18597, CMPort: 17175, Size: 64,
		Timeout: 5e9}
	r := &Report{}
	require.NoError(t, ExaminePair(ctx, Real, o, r))
	assert.Empty(t, r.Findings)
	local, remote := endpoints(&r.Pair.Pings.Results[0])
	assert.NotZero(t, local.MTU)
	assert.Equal(t, local.MTU, remote.MTU)
	assert.GreaterOrEqual(t, r.Pair.PathMTU, 1024)
	cancel()
	require.NoError(t, <-done)

	r = &Report{}
	o.Timeout = 1e9
	require.NoError(t, ExaminePair(t.Context(), Real, o, r))
	require.Len(t, r.Findings, 1)
	assert.Equal(t, "pair.tcp", r.Findings[0].Cause)
	assert.Contains(t, r.Findings[0].Fix, "start goverbs serve on the peer")
}

// TestFailingPairs checks the findings for faults between software devices.
func TestFailingPairs(t *testing.T) {
	t.Run("pair.refused", func(t *testing.T) { // the peer reports an endpoint at an unused address
		d, err := rdma.Open("soft@127.79.1.3") // its connection manager rejects
		require.NoError(t, err)
		defer d.Close()
		l, err := net.Listen("tcp", "127.79.1.3:0")
		require.NoError(t, err)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 1000))
				_, _ = c.Write([]byte(`{"endpoint":"qpn=0x1234 gid=::ffff:127.79.1.9 mtu=1024 qkey=1"}` + "\n"))
				go func() {
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				}()
			}
		}()
		o := ping.Options{Device: "soft@127.79.1.2", GIDIndex: -1, Peer: "127.79.1.3",
			Port: l.Addr().(*net.TCPAddr).Port, CMPort: 2, Size: 64, Timeout: time.Second}
		r := &Report{}
		require.NoError(t, ExaminePair(t.Context(), Real, o, r))
		require.Len(t, r.Findings, 1, "%+v", r.Findings)
		assert.Equal(t, "pair.refused", r.Findings[0].Cause)
		assert.Contains(t, r.Findings[0].Fix, "127.79.1.9")
	})
	t.Run("pair.firewall", func(t *testing.T) { // like a firewall: TCP works, RoCE packets are dropped
		if os.Getenv("GOVERBS_EVERYTHING") == "" {
			t.Skip("takes 13 s; make test-all runs it")
		}
		s := &ping.Server{Device: "soft@127.79.1.4", GIDIndex: -1, Port: 18598, CMPort: 17176, PingPong: ping.RC,
			Log: func(string) {}}
		require.NoError(t, s.Listen())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		require.NoError(t, soft.Wired().SetFaults(soft.Faults{Drop: 1}))
		o := ping.Options{Device: "soft@127.79.1.2", GIDIndex: -1, Peer: "127.79.1.4", Port: 18598, CMPort: 17176,
			Size: 64, Timeout: time.Second}
		r := &Report{}
		err := ExaminePair(t.Context(), Real, o, r)
		require.NoError(t, soft.Wired().SetFaults(soft.Faults{}))
		cancel()
		<-done
		require.NoError(t, err)
		require.Len(t, r.Findings, 1, "%+v", r.Findings)
		assert.Equal(t, "pair.firewall", r.Findings[0].Cause)
		assert.Contains(t, r.Findings[0].Fix, "allow UDP port 4791 in both directions on both hosts")
	})
}
