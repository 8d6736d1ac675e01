// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

const (
	fewConnections = 16 // whose time is taken off that of many, so that the programs' starts do not count
	connections    = 216
	dialAtOnce     = 8 // streams
)

// envBefore names a program of these tests as they were, which is measured, too.
const envBefore = "GOVERBS_CM_BEFORE"

// TestConnections measures how long connections take to be made and ended between two processes: with one completion
// queue for all, step by step as C's cmtime does it, beside cmtime; with their own; and as streams, some at a time. The
// kernel counts the system calls of the connecting side. cm-connections-KERNEL.csv has the figures. GOVERBS_SPEED=1
// asks for it.
func TestConnections(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for minutes: vmtest -env GOVERBS_SPEED=1")
	}
	rig.Kernel(t)
	client := filepath.Join(t.TempDir(), "cmclient") // the name by which its calls are counted
	require.NoError(t, os.Symlink("/proc/self/exe", client))
	countEvents(t, "cmclient", "cmtime")
	ways := []string{"cmtime", "one queue", "own queues", "streams"}
	if os.Getenv(envBefore) != "" {
		ways = append(ways, "one queue before", "own queues before", "streams before")
	}
	figures := map[string][][]float64{}
	port := uint16(7700)
	for round := range measured + 1 {
		for _, way := range ways {
			var row []float64
			for _, n := range []int{fewConnections, connections} {
				port++
				at := address(t, port)
				before := calls(t)
				var took time.Duration
				if way == "cmtime" {
					took = cmtime(t, at, n)
				} else {
					took = connecting(t, at, client, way, n)
				}
				all, naps := calls(t).less(before)
				now := []float64{took.Seconds() * 1e6, float64(all), float64(naps)}
				for i := range row {
					row[i] = (now[i] - row[i]) / (connections - fewConnections)
				}
				if row == nil {
					row = now
				}
			}
			t.Logf("round %d: %s: %.1f", round, way, row)
			if round > 0 { // the first is to get warm
				figures[way] = append(figures[way], row)
			}
		}
	}
	var csv strings.Builder
	csv.WriteString("connections,what,minimum,median,maximum,median of the ratios to cmtime\n")
	for _, way := range ways {
		for i, what := range []string{"µs a connection", "system calls of the client a connection",
			"and sleeps of a thread that has nothing to do"} {
			own := column(figures[way], i)
			least, median, most := spread(own)
			fmt.Fprintf(&csv, "%s,%s,%.1f,%.1f,%.1f,%s\n", way, what, least, median, most,
				strings.Fields(ratios(own, column(figures["cmtime"], i)))[0])
		}
	}
	t.Logf("\n%s", csv.String())
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), "cm-connections-"+os.Getenv(wire.EnvGuest)+
		".csv"), []byte(csv.String()), 0o644))
}

// called are numbers of system calls, by what they are.
type called map[string]int

// calls are those until now.
func calls(t *testing.T) called {
	text, err := os.ReadFile(filepath.Join(tracing, "raw_syscalls/sys_enter/hist"))
	require.NoError(t, err)
	all := called{}
	for _, m := range regexp.MustCompile(`id: +(\d+) } hitcount: +(\d+)`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]], err = strconv.Atoi(m[2])
		require.NoError(t, err)
	}
	return all
}

// less tells how many more there are, and apart from them, sleeps of Go's scheduler and yields of cmtime, of which
// there are the more the longer something takes.
func (c called) less(before called) (all, naps int) {
	for id, n := range c {
		switch n -= before[id]; id {
		case strconv.Itoa(unix.SYS_NANOSLEEP), strconv.Itoa(unix.SYS_SCHED_YIELD):
			naps += n
		default:
			all += n
		}
	}
	return all, naps
}

// cmtime is C's, both ends, from the start of the connecting one to its end.
func cmtime(t *testing.T, at netip.AddrPort, n int) time.Duration {
	args := []string{"-p", strconv.Itoa(int(at.Port())), "-c", strconv.Itoa(n)}
	path, err := exec.LookPath("cmtime")
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), "cmserver") // whose calls are not counted
	require.NoError(t, os.Symlink(path, other))
	server := run(t, other, append(args, "-b", at.Addr().String())...)
	time.Sleep(500 * time.Millisecond) // it does not say when it listens
	began := time.Now()
	out, err := exec.Command("cmtime", append(args, "-s", at.Addr().String())...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	took := time.Since(began)
	_ = server.cmd.Process.Kill() // that of some releases serves on
	<-server.done
	return took
}

// Roles of TestConnectionsPeer, and where.
const (
	envConnect = "GOVERBS_CM_CONNECT"
	envAt      = "GOVERBS_CM_AT"
	envBegan   = "GOVERBS_CM_BEGAN" // when the role was started
	envNumber  = "GOVERBS_CM_NUMBER"
)

// connecting is Go, both ends, from the start of the connecting one to its last connection's end. What it does after
// that is a search for leaks, which finds what the other end has.
func connecting(t *testing.T, at netip.AddrPort, client, way string, n int) time.Duration {
	program := func(path, role string) *exec.Cmd {
		c := exec.Command(path, "-test.run=^TestConnectionsPeer$")
		c.Env = append(os.Environ(), envConnect+"="+role, envAt+"="+at.String(),
			envBegan+"="+strconv.FormatInt(time.Now().UnixNano(), 10), envNumber+"="+strconv.Itoa(n))
		return c
	}
	self := "/proc/self/exe"
	if of, before := strings.CutSuffix(way, " before"); before {
		self = os.Getenv(envBefore)
		was := filepath.Join(filepath.Dir(client), "before")
		require.NoError(t, os.MkdirAll(was, 0o755))
		client = filepath.Join(was, "cmclient")
		_ = os.Symlink(self, client)
		way = of
	}
	server := program(self, way+" server")
	listening(t, server)
	out, _ := program(client, way).CombinedOutput()
	_ = server.Process.Kill()
	_ = server.Wait()
	said := regexp.MustCompile(`took (\S+)\nPASS`).FindSubmatch(out)
	require.NotNil(t, said, "%s", out)
	took, err := time.ParseDuration(string(said[1]))
	require.NoError(t, err)
	return took
}

// TestConnectionsPeer is one end.
func TestConnectionsPeer(t *testing.T) {
	role := os.Getenv(envConnect)
	if role == "" {
		t.Skip("a part of TestConnections")
	}
	rig.Kernel(t)
	at := netip.MustParseAddrPort(os.Getenv(envAt))
	config := on(&cm.Config{Buffer: 8 << 10})
	began, err := strconv.ParseInt(os.Getenv(envBegan), 10, 64)
	require.NoError(t, err)
	defer func() { fmt.Println("took", time.Since(time.Unix(0, began))) }()
	n, err := strconv.Atoi(os.Getenv(envNumber))
	require.NoError(t, err)
	switch role {
	case "one queue", "own queues":
		connectAll(t, eventChannel(t), &queues{one: strings.HasPrefix(role, "one queue")}, at, n)
	case "one queue server", "own queues server":
		acceptAll(t, eventChannel(t), &queues{one: strings.HasPrefix(role, "one queue")}, at)
	case "streams":
		var all sync.WaitGroup
		for range dialAtOnce {
			all.Go(func() {
				for range n / dialAtOnce {
					c, err := config.Dial(context.Background(), at.String())
					if err == nil {
						err = c.Close()
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	case "streams server":
		l, err := config.Listen(context.Background(), at.String())
		require.NoError(t, err)
		fmt.Println("listens at", l.Addr())
		for {
			c, err := l.Accept()
			require.NoError(t, err)
			go func() {
				_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
				_ = c.Close()
			}()
		}
	}
}

func eventChannel(t *testing.T) *cm.EventChannel {
	ch, err := createEventChannel()
	require.NoError(t, err)
	return ch
}

// queues makes queue pairs with completion queues of their own, or with one that is made for the first.
type queues struct {
	one  bool
	once sync.Once
	cq   *rdma.CQ // or nil
}

func (q *queues) create(id *cm.ID) error {
	attr := qpAttr
	if q.one {
		var err error
		q.once.Do(func() {
			var d *rdma.Device
			if d, err = id.Device(); err == nil {
				q.cq, err = d.CreateCQ(1000, nil, 0)
			}
		})
		if err != nil {
			return err
		}
		attr.SendCQ, attr.RecvCQ = q.cq.Ptr(), q.cq.Ptr()
	}
	_, err := id.CreateQP(nil, &attr, rdma.QueueOptions{Overcommit: q.one}) // nothing is posted
	return err
}

// connectAll makes connections as cmtime does: each step for all, and then the next.
func connectAll(t *testing.T, ch *cm.EventChannel, q *queues, to netip.AddrPort, n int) {
	var err error
	ids := make([]*cm.ID, n)
	ctx := context.Background()
	for _, step := range []struct {
		do    func(id *cm.ID) error
		event rdmacm.CMEventType
	}{
		{func(id *cm.ID) error { return id.ResolveAddr(ctx, netip.AddrPort{}, to, 2*time.Second) },
			rdmacm.CM_EVENT_ADDR_RESOLVED},
		{func(id *cm.ID) error { return id.ResolveRoute(ctx, 2*time.Second) }, rdmacm.CM_EVENT_ROUTE_RESOLVED},
		{func(id *cm.ID) error {
			if err := q.create(id); err != nil {
				return err
			}
			return id.Connect(ctx, nil, nil)
		}, rdmacm.CM_EVENT_ESTABLISHED},
		{func(id *cm.ID) error { return id.Disconnect(ctx) }, rdmacm.CM_EVENT_DISCONNECTED},
	} {
		for i := range ids {
			if ids[i] == nil {
				ids[i], err = ch.CreateID(rdmacm.PS_TCP)
				require.NoError(t, err)
			}
			require.NoError(t, step.do(ids[i]))
		}
		for came := 0; came < n; {
			e, err := ch.Event(ctx)
			require.NoError(t, err)
			if e.Type == step.event {
				came++
			} else {
				require.Equal(t, rdmacm.CM_EVENT_TIMEWAIT_EXIT, e.Type)
			}
		}
	}
	for _, id := range ids {
		require.NoError(t, id.QP().Close())
	}
	if q.cq != nil { // before the last ID of its device
		require.NoError(t, q.cq.Close())
	}
	for _, id := range ids {
		require.NoError(t, id.Close())
	}
}

// acceptAll is the other end.
func acceptAll(t *testing.T, ch *cm.EventChannel, q *queues, at netip.AddrPort) {
	l, err := ch.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(1024))
	fmt.Println("listens at", at)
	ctx := context.Background()
	asked, left := make(chan *cm.ID, connections), make(chan *cm.ID, connections)
	go func() { // as cmtime has threads for both
		for id := range asked {
			err := q.create(id)
			if err == nil {
				err = id.Accept(ctx, nil, nil)
			}
			assert.NoError(t, err)
		}
	}()
	go func() {
		for id := range left {
			assert.NoError(t, id.Disconnect(ctx))
			assert.NoError(t, id.Close())
		}
	}()
	for e, err := range ch.Events(ctx) {
		require.NoError(t, err)
		switch e.Type {
		case rdmacm.CM_EVENT_CONNECT_REQUEST:
			asked <- e.ID
		case rdmacm.CM_EVENT_DISCONNECTED:
			left <- e.ID
		}
	}
}
