// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream"
)

// holdEnv is an environment variable that makes the test binary hold objects, and leak some on request.
const holdEnv = "GOVERBS_TEST_HOLDS"

func TestMain(m *testing.M) {
	if os.Getenv(holdEnv) == "" {
		os.Exit(m.Run())
	}
	if err := holdObjects(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// leaked is the size of each leaked region.
const leaked = 12288

// holdObjects creates three queue pairs, two of them connected, regions, a shared receive queue and a listener. For
// each number that it reads, it leaks that many regions and prints a line.
func holdObjects() error {
	d, err := rdma.Open(os.Getenv("GOVERBS_DEVICE"))
	if err != nil {
		return err
	}
	var pairs []*rdma.QP
	var ends []rdma.Endpoint
	for range 3 {
		p, err := d.NewRC(rdma.QPParts{})
		if err != nil {
			return err
		}
		end, err := p.Endpoint()
		if err != nil {
			return err
		}
		pairs, ends = append(pairs, p), append(ends, end)
	}
	for i := range 2 {
		if err := pairs[i].Connect(ends[1-i]); err != nil {
			return err
		}
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	if _, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, rdma.QueueOptions{}); err != nil {
		return err
	}
	if _, err := d.CreateCQ(100, nil, 0); err != nil {
		return err
	}
	if _, err := pd.RegMR(make([]byte, 4097), ibv.ACCESS_LOCAL_WRITE); err != nil {
		return err
	}
	_, err = stream.Listen(context.Background(), os.Getenv("GOVERBS_ADDRESS")+":7471")
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(pairs)
	fmt.Println("held")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		for range n {
			if _, err := pd.RegMR(make([]byte, leaked), 0); err != nil {
				return err
			}
		}
		fmt.Println("leaked")
	}
	return nil
}

// holder is a process that holds objects.
type holder struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startHolder(t *testing.T) *holder {
	self, err := os.Executable()
	require.NoError(t, err)
	h := &holder{Cmd: exec.Command(self)}
	h.Env, h.Stderr = append(os.Environ(), holdEnv+"=1"), os.Stderr
	h.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := h.StdinPipe()
	require.NoError(t, err)
	out, err := h.StdoutPipe()
	require.NoError(t, err)
	h.in, h.out = in, bufio.NewReader(out)
	require.NoError(t, h.Start())
	t.Cleanup(func() {
		assert.NoError(t, in.Close())
		assert.NoError(t, h.Wait())
	})
	h.expect(t, "held\n")
	return h
}

func (h *holder) expect(t *testing.T, want string) {
	line, err := h.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want, line)
}

func (h *holder) leak(t *testing.T, n int) {
	_, err := fmt.Fprintln(h.in, n)
	require.NoError(t, err)
	h.expect(t, "leaked\n")
}

// report returns the JSON output of the command.
func report(t *testing.T, args ...string) *Report {
	out, err := exec.Command("goverbs", append([]string{"--json", "top"}, args...)...).Output()
	require.NoError(t, err)
	var r Report
	require.NoError(t, json.Unmarshal(out, &r))
	return &r
}

// rdmaTool returns the JSON output of iproute2's rdma.
func rdmaTool(t *testing.T, args ...string) (all []map[string]any) {
	out, err := exec.Command("rdma", append(args, "-j")...).Output()
	require.NoError(t, err)
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&all))
	return all
}

// rdmaNames maps this package's names to rdma's where they differ.
var rdmaNames = map[string]map[string]string{
	"qp": {"lqpn": "number", "rqpn": "peer_qpn", "rq-psn": "rq_psn", "sq-psn": "sq_psn", "pdn": "pd", "type": "type",
		"state": "state", "port": "port"},
	"mr": {"mrn": "number", "mrlen": "bytes", "pdn": "pd", "ctxn": "ctx"},
	"cq": {"cqn": "number", "cqe": "cqe", "users": "users", "ctxn": "ctx"},
	"pd": {"pdn": "number", "users": "users", "ctxn": "ctx"},
	"cm_id": {"cm-idn": "number", "lqpn": "qpn", "state": "state", "ps": "type",
		"src-addr": "local", "dst-addr": "remote"},
	"srq": {"srqn": "number", "type": "type", "pdn": "pd", "ctxn": "ctx"},
	"ctx": {"ctxn": "number"},
}

// notShown lists values that top omits.
var notShown = map[string]bool{"ifindex": true, "path-mig-state": true, "poll-ctx": true, "adaptive-moderation": true,
	"local_dma_lkey": true, "qp-type": true, "port": true, "lqpn": true, "cqn": true, "min-range": true, "rkey": true,
	"lkey": true, "iova": true}

// TestGuest compares all values of a program's objects with iproute2's rdma.
func TestGuest(t *testing.T) {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("runs in a guest: make vm, or go run ./conformance/vm/cmd/vmtest -with ./cmd/goverbs …")
	}
	h := startHolder(t)
	r := report(t, "-1", "-o")
	t.Run("summary", func(t *testing.T) {
		all := rdmaTool(t, "resource", "show")
		require.Len(t, r.Devices, len(all))
		for _, want := range all {
			require.Equal(t, want["ifname"], r.Devices[0].Name)
			for kind, n := range r.Devices[0].Objects {
				assert.EqualValues(t, fmt.Sprint(n), fmt.Sprint(want[kind]), kind)
			}
		}
		assert.Empty(t, r.Devices[0].Hidden)
		assert.Empty(t, r.Notes)
	})
	t.Run("objects", func(t *testing.T) { compareObjects(t, r) })
	t.Run("counters", func(t *testing.T) { compareCounters(t) })
	t.Run("program", func(t *testing.T) {
		var processes []Process
		for _, p := range r.Processes {
			if int(p.PID) == h.Process.Pid {
				processes = append(processes, p)
			}
		}
		require.Len(t, processes, 1)
		assert.Contains(t, processes[0].Name, "top.test")
		assert.EqualValues(t, 3, processes[0].Objects["qp"])
		assert.EqualValues(t, 1, processes[0].Objects["mr"])
		assert.EqualValues(t, 1, processes[0].Objects["srq"])
		assert.EqualValues(t, 4097, processes[0].MRBytes)
	})
	t.Run("leak", func(t *testing.T) { checkLeak(t, h) })
	t.Run("namespace", func(t *testing.T) { checkNamespace(t, r) })
}

func compareObjects(t *testing.T, r *Report) {
	wantOwn := map[string]map[string]any{}
	for _, o := range r.Objects {
		text, err := json.Marshal(o)
		require.NoError(t, err)
		one := map[string]any{}
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&one))
		wantOwn[fmt.Sprintf("%s %d %d", o.Kind, o.Number, o.Thread)] = one
	}
	seen, values := 0, 0
	for kind, names := range rdmaNames {
		all := rdmaTool(t, "resource", "show", kind)
		for _, want := range all {
			var number any
			for name, key := range names {
				if key == "number" {
					number = want[name]
				}
			}
			pid := want["pid"]
			if pid == nil {
				pid = 0
			}
			o := wantOwn[fmt.Sprintf("%s %v %v", kind, number, pid)]
			require.NotNil(t, o, "%s %v", kind, want)
			seen++
			for name, value := range want {
				key, ok := names[name], false
				switch {
				case name == "ifname":
					key = "device"
				case name == "pid":
					key = "thread" // rdma prints the thread
				case name == "comm":
					key = "owner"
					if want["pid"] == nil {
						value = fmt.Sprintf("[%v]", value)
					}
				case key == "":
					assert.True(t, notShown[name], "%s has unknown value %s=%v", kind, name, value)
					continue
				}
				got := o[key]
				if got == nil && (fmt.Sprint(value) == "0") {
					ok = true // omitted in JSON
				}
				assert.True(t, ok || fmt.Sprint(value) == fmt.Sprint(got), "%s %v: %s is %v, not %v", kind, number,
					name, value, got)
				values++
			}
		}
	}
	assert.Equal(t, len(r.Objects), seen, "number of objects")
	t.Logf("%d values of %d objects agree", values, seen)
}

// compareCounters reads counters before and after rdma does, since packets may arrive.
func compareCounters(t *testing.T) {
	before := report(t, "-1").Devices[0].Ports[0].Hardware
	all := rdmaTool(t, "statistic", "show")
	after := report(t, "-1").Devices[0].Ports[0].Hardware
	require.Len(t, all, 1)
	for name, value := range all[0] {
		if name == "ifname" || name == "port" {
			continue
		}
		n, err := strconv.ParseUint(fmt.Sprint(value), 10, 64)
		require.NoError(t, err)
		assert.Contains(t, before, name)
		assert.LessOrEqual(t, before[name], n, name)
		assert.GreaterOrEqual(t, after[name], n, name)
	}
	assert.Len(t, before, len(all[0])-2)
}

// checkLeak checks that a leak appears as growth, relative to a file and between updates.
func checkLeak(t *testing.T, h *holder) {
	out, err := exec.Command("goverbs", "--json", "top", "-1").Output()
	require.NoError(t, err)
	before := t.TempDir() + "/before"
	require.NoError(t, os.WriteFile(before, out, 0o600))
	assert.Empty(t, report(t, "-1", "-g", "--since", before).Processes, "nothing has grown")
	live := exec.Command("goverbs", "--json", "top", "-i", "100ms", "-g", "-p", strconv.Itoa(h.Process.Pid))
	live.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	pipe, err := live.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, live.Start())
	defer func() {
		assert.NoError(t, live.Process.Signal(syscall.SIGINT))
		assert.NoError(t, live.Wait(), "interrupting is not an error")
	}()
	lines := json.NewDecoder(pipe)
	var first Report
	require.NoError(t, lines.Decode(&first))
	assert.Empty(t, first.Processes)
	const regions = 7
	h.leak(t, regions)
	want := map[string]int64{"mr": regions, mrBytes: regions * leaked}
	assert.Eventually(t, func() bool {
		var r Report
		return lines.Decode(&r) == nil && len(r.Processes) == 1 && assert.ObjectsAreEqual(want, r.Processes[0].Grown) &&
			r.Interval > 0
	}, 30*time.Second, time.Millisecond)
	grown := report(t, "-1", "-g", "--since", before)
	require.Len(t, grown.Processes, 1)
	assert.EqualValues(t, h.Process.Pid, grown.Processes[0].PID)
	assert.Equal(t, want, grown.Processes[0].Grown)
	text, err := exec.Command("goverbs", "top", "-1", "-g", "--since", before).Output()
	require.NoError(t, err)
	assert.Contains(t, string(text), fmt.Sprintf("mr +%d, mr_bytes +%d", regions, regions*leaked))
	t.Logf("%s", text)
}

// checkNamespace checks that in another PID namespace, objects of other programs are hidden and a note explains it.
func checkNamespace(t *testing.T, outside *Report) {
	cmd := exec.Command("goverbs", "--json", "top", "-1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.Output()
	require.NoError(t, err)
	var r Report
	require.NoError(t, json.Unmarshal(out, &r))
	for _, p := range r.Processes {
		assert.Zero(t, p.PID)
	}
	if hidden := r.Devices[0].Hidden["qp"]; hidden == 0 { // older kernels list them without a program
		assert.Equal(t, resources.Elsewhere, r.Processes[0].Name)
		assert.EqualValues(t, 3, r.Processes[0].Objects["qp"])
	}
	assert.Equal(t, outside.Devices[0].Objects["qp"], r.Devices[0].Objects["qp"])
	assert.Contains(t, strings.Join(r.Notes, "\n"), "PID namespaces")
}
