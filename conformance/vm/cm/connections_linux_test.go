// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

const (
	fewConnections = 16 // their time is subtracted, so that the start of a process does not count
	connections    = 216
	dialAtOnce     = 8
)

// envBefore names an older build of these tests, which is measured as well.
const envBefore = "GOVERBS_CM_BEFORE"

// TestConnections measures how long it takes to open and close connections between two processes, compared with C's
// cmtime: in the steps of cmtime, with a shared completion queue and with separate ones, and as streams, several at a
// time. In separate rounds, since counting takes time, the kernel counts the system calls of the client. The test
// writes cm-connections-KERNEL.csv and runs only with GOVERBS_SPEED=1.
func TestConnections(t *testing.T) {
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for minutes: make bench WHAT=vm")
	}
	testbed.Kernel(t)
	client := filepath.Join(t.TempDir(), "cmclient") // the name by which the client's system calls are counted
	require.NoError(t, os.Symlink("/proc/self/exe", client))
	c := openCMTime(t)
	variants := []string{"cmtime", "cmtime, own queues", "one queue", "own queues", "streams",
		"streams, 8 at a time"}
	if os.Getenv(envBefore) != "" {
		variants = append(variants, "one queue before", "own queues before", "streams before",
			"streams, 8 at a time before")
	}
	port := uint16(7700)
	// connect runs both ends with n connections
	connect := func(variant string, n int) time.Duration {
		port++
		if strings.HasPrefix(variant, "cmtime") {
			return c.connecting(t, variant, address(t, port), n)
		}
		return connecting(t, address(t, port), client, variant, n)
	}
	elapsed, created, idleSleeps := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	more := func(few, many float64) float64 { return (many - few) / (connections - fewConnections) }
	for round := range measured + 1 {
		for _, mode := range variants {
			few := connect(mode, fewConnections)
			each := more(few.Seconds()*1e6, connect(mode, connections).Seconds()*1e6)
			t.Logf("round %d: %s: %.1f", round, mode, each)
			if round > 0 { // the first round warms up
				elapsed[mode] = append(elapsed[mode], each)
			}
		}
	}
	countEvents(t, counted[2:], "cmclient", "cmtime")
	for range 3 {
		for _, method := range variants {
			before := calls(t)
			connect(method, fewConnections)
			fewCalls, fewIdleSleeps := calls(t).less(before)
			before = calls(t)
			connect(method, connections)
			manyCalls, manyIdleSleeps := calls(t).less(before)
			created[method] = append(created[method], more(float64(fewCalls), float64(manyCalls)))
			idleSleeps[method] = append(idleSleeps[method], more(float64(fewIdleSleeps), float64(manyIdleSleeps)))
		}
	}
	var csv strings.Builder
	csv.WriteString("connections,what,minimum,median,maximum,median of the ratios to cmtime,and with own queues\n")
	for _, way := range variants {
		for _, f := range []struct {
			name    string
			figures map[string][]float64
		}{
			{"µs a connection", elapsed},
			{"system calls of the client a connection", created},
			{"and sleeps of idle threads", idleSleeps},
		} {
			least, median, most := spread(f.figures[way])
			fmt.Fprintf(&csv, "%q,%s,%.1f,%.1f,%.1f", way, f.name, least, median, most)
			for _, other := range variants[:2] {
				fmt.Fprintf(&csv, ",%s", strings.Fields(ratios(f.figures[way], f.figures[other]))[0])
			}
			csv.WriteString("\n")
		}
	}
	t.Logf("\n%s", csv.String())
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), "cm-connections-"+os.Getenv(wire.EnvGuest)+
		".csv"), []byte(csv.String()), 0o644))
}

// called maps system calls to their number of calls.
type called map[string]int

// calls returns the calls so far.
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

// less returns the increase of calls, and separately the sleeps of Go's scheduler and the yields of cmtime, whose
// number depends on the duration.
func (c called) less(before called) (all, idleSleeps int) {
	for id, n := range c {
		switch n -= before[id]; id {
		case strconv.Itoa(unix.SYS_NANOSLEEP), strconv.Itoa(unix.SYS_SCHED_YIELD):
			idleSleeps += n
		default:
			all += n
		}
	}
	return all, idleSleeps
}

// Roles of TestConnectionsPeer, and its environment variables.
const (
	envConnect = "GOVERBS_CM_CONNECT"
	envAt      = "GOVERBS_CM_AT"
	envBegan   = "GOVERBS_CM_BEGAN" // start time of the role
	envNumber  = "GOVERBS_CM_NUMBER"
)

// connecting runs both ends in Go, and returns the time from the start of the client to the end of its last connection.
// It excludes the client's check for leaks, which would find resources of the server.
func connecting(t *testing.T, at netip.AddrPort, client, variant string, n int) time.Duration {
	program := func(path, role string) *exec.Cmd {
		c := exec.Command(path, "-test.run=^TestConnectionsPeer$")
		c.Env = append(os.Environ(), envConnect+"="+role, envAt+"="+at.String(),
			envBegan+"="+strconv.FormatInt(time.Now().UnixNano(), 10), envNumber+"="+strconv.Itoa(n))
		return c
	}
	self := "/proc/self/exe"
	if of, before := strings.CutSuffix(variant, " before"); before {
		self = os.Getenv(envBefore)
		was := filepath.Join(filepath.Dir(client), "before")
		require.NoError(t, os.MkdirAll(was, 0o755))
		client = filepath.Join(was, "cmclient")
		_ = os.Symlink(self, client)
		variant = of
	}
	server := program(self, variant+" server")
	listening(t, server)
	out, _ := program(client, variant).CombinedOutput()
	_ = server.Process.Kill()
	_ = server.Wait()
	output := regexp.MustCompile(`took (\S+)\nPASS`).FindSubmatch(out)
	require.NotNil(t, output, "%s", out)
	took, err := time.ParseDuration(string(output[1]))
	require.NoError(t, err)
	return took
}

// TestConnectionsPeer runs one end.
func TestConnectionsPeer(t *testing.T) {
	role := os.Getenv(envConnect)
	if role == "" {
		t.Skip("a part of TestConnections")
	}
	testbed.Kernel(t)
	at := netip.MustParseAddrPort(os.Getenv(envAt))
	config := on(stream.Config{Buffer: 8 << 10})
	start, err := strconv.ParseInt(os.Getenv(envBegan), 10, 64)
	require.NoError(t, err)
	defer func() { fmt.Println("took", time.Since(time.Unix(0, start))) }()
	n, err := strconv.Atoi(os.Getenv(envNumber))
	require.NoError(t, err)
	switch role {
	case "one queue", "own queues":
		connectAll(t, eventChannel(t), &queues{one: strings.HasPrefix(role, "one queue")}, at, n)
	case "one queue server", "own queues server":
		acceptAll(t, eventChannel(t), &queues{one: strings.HasPrefix(role, "one queue")}, at)
	case "streams": // each step for all connections, like cmtime
		conns := make([]*stream.Conn, n)
		atOnce(n, n, func(i int) error {
			var err error
			conns[i], err = dialer(config).Dial(context.Background(), at.String())
			return err
		}, t)
		atOnce(n, n, func(i int) error { return conns[i].Close() }, t)
	case "streams, 8 at a time":
		atOnce(n, dialAtOnce, func(int) error {
			c, err := dialer(config).Dial(context.Background(), at.String())
			if err == nil {
				err = c.Close()
			}
			return err
		}, t)
	case "streams server", "streams, 8 at a time server":
		l, err := listenConfig(config).Listen(context.Background(), at.String())
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

// atOnce calls do n times, at most `most` of them concurrently.
func atOnce(n, most int, do func(i int) error, t *testing.T) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range most {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if !assert.NoError(t, do(i)) {
					return
				}
			}
		})
	}
	all.Wait()
}

func eventChannel(t *testing.T) *cm.EventChannel {
	ch, err := createEventChannel()
	require.NoError(t, err)
	return ch
}

// queues creates queue pairs with separate completion queues, or with a completion queue that is shared by all.
type queues struct {
	one  bool
	once sync.Once
	cq   *rdma.CQ // optional
}

func (q *queues) create(id *cm.ID) error {
	attr := ibv.QPInitAttr{QPType: ibv.QPT_RC, SQSigAll: 1, // like cmtime
		Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
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
	_, err := id.CreateQP(nil, &attr, rdma.QueueOptions{Overcommit: q.one}) // no requests are posted
	return err
}

// connectAll opens connections like cmtime: each step for all connections before the next step, while another goroutine
// reads events.
func connectAll(t *testing.T, ch *cm.EventChannel, q *queues, to netip.AddrPort, n int) {
	ctx := context.Background()
	arrived := map[rdmacm.CMEventType]chan struct{}{ // closed when all events of a type have arrived
		rdmacm.CM_EVENT_ADDR_RESOLVED: make(chan struct{}), rdmacm.CM_EVENT_ROUTE_RESOLVED: make(chan struct{}),
		rdmacm.CM_EVENT_ESTABLISHED: make(chan struct{}), rdmacm.CM_EVENT_DISCONNECTED: make(chan struct{}),
	}
	go func() {
		count := map[rdmacm.CMEventType]int{}
		for count[rdmacm.CM_EVENT_DISCONNECTED] < n {
			e, err := ch.Event(ctx)
			if err != nil {
				assert.NoError(t, err)
				return
			}
			if e.Type == rdmacm.CM_EVENT_TIMEWAIT_EXIT {
				continue
			}
			all, ok := arrived[e.Type]
			if !ok {
				assert.Contains(t, arrived, e.Type)
				return
			}
			if count[e.Type]++; count[e.Type] == n {
				close(all)
			}
		}
	}()
	ids := make([]*cm.ID, n)
	step := func(do func(id *cm.ID) error) {
		for _, id := range ids {
			if err := do(id); err != nil { // testify would inspect the stack on every call
				require.NoError(t, err)
			}
		}
	}
	for i := range ids {
		var err error
		if ids[i], err = ch.CreateID(rdmacm.PS_TCP); err != nil {
			require.NoError(t, err)
		}
	}
	step(func(id *cm.ID) error { return id.ResolveAddr(ctx, netip.AddrPort{}, to, 2*time.Second) })
	<-arrived[rdmacm.CM_EVENT_ADDR_RESOLVED]
	step(func(id *cm.ID) error { return id.ResolveRoute(ctx, 2*time.Second) })
	<-arrived[rdmacm.CM_EVENT_ROUTE_RESOLVED]
	step(q.create)
	param := cm.DefaultConnParam()
	param.ResponderResources, param.InitiatorDepth = 1, 1 // like cmtime
	step(func(id *cm.ID) error { return id.Connect(ctx, &param, nil) })
	<-arrived[rdmacm.CM_EVENT_ESTABLISHED]
	step(func(id *cm.ID) error {
		if err := id.Disconnect(ctx); err != nil {
			return err
		}
		return id.QP().Close()
	})
	<-arrived[rdmacm.CM_EVENT_DISCONNECTED]
	if q.cq != nil { // must be closed before the last ID of its device
		require.NoError(t, q.cq.Close())
	}
	step((*cm.ID).Close)
}

// acceptAll is the server of connectAll.
func acceptAll(t *testing.T, ch *cm.EventChannel, q *queues, at netip.AddrPort) {
	l, err := ch.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(1024))
	fmt.Println("listens at", at)
	ctx := context.Background()
	asked, left := make(chan *cm.ID, connections), make(chan *cm.ID, connections)
	go func() { // like cmtime's two threads
		for id := range asked {
			err := q.create(id)
			if err == nil {
				err = id.Accept(ctx, nil, nil)
			}
			if err != nil {
				assert.NoError(t, err)
			}
		}
	}()
	go func() {
		for id := range left {
			if err := errors.Join(id.Disconnect(ctx), id.Close()); err != nil {
				assert.NoError(t, err)
			}
		}
	}()
	for e, err := range ch.Events(ctx) {
		if err != nil {
			require.NoError(t, err)
		}
		switch e.Type {
		case rdmacm.CM_EVENT_CONNECT_REQUEST:
			asked <- e.ID
		case rdmacm.CM_EVENT_DISCONNECTED:
			left <- e.ID
		}
	}
}
