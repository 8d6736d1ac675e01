// SPDX-License-Identifier: BSD-2-Clause

package exporter

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
)

// parseExport returns the metrics that a command prints, by name and labels.
func parseExport(t *testing.T, text string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if i := strings.LastIndexByte(line, ' '); line[0] != '#' {
			values[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	require.NotEmpty(t, values)
	return values
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

// TestGuest compares the exported values with iproute2's rdma.
func TestGuest(t *testing.T) {
	if os.Getenv("GOVERBS_GUEST") == "" {
		t.Skip("runs in a guest: make vm, or go run ./conformance/vm/cmd/vmtest -with ./cmd/goverbs …")
	}
	d, err := rdma.Open(os.Getenv("GOVERBS_DEVICE"))
	require.NoError(t, err)
	defer func() { assert.NoError(t, d.Close()) }()
	var all []rdma.Object
	defer func() { assert.NoError(t, rdma.CloseAll(nil, all...)) }()
	for range 2 {
		q, err := d.NewRC(rdma.QPParts{})
		require.NoError(t, err)
		all = append(all, q)
		mr, err := q.RegMR(make([]byte, 5000), 0)
		require.NoError(t, err)
		all = append(all, mr)
	}
	out, err := exec.Command("goverbs", "exporter", "--once").Output()
	require.NoError(t, err)
	problems, err := promlint.New(strings.NewReader(string(out))).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems)
	values, compared := parseExport(t, string(out)), 0
	is := func(want any, format string, args ...any) {
		t.Helper()
		name := fmt.Sprintf(format, args...)
		assert.Equal(t, fmt.Sprint(want), values[name], name)
		compared++
	}
	summary := rdmaTool(t, "resource", "show")[0]
	for _, kind := range []string{"qp", "mr", "cq", "pd", "cm_id", "srq", "ctx"} {
		is(summary[kind], `goverbs_device_objects{device="%v",kind="%s"}`, summary["ifname"], kind)
		owners := map[string]int{}
		for _, o := range rdmaTool(t, "resource", "show", kind) {
			owner := fmt.Sprint(o["comm"])
			if o["pid"] == nil {
				owner = "[" + owner + "]"
			}
			owners[owner]++
		}
		for owner, n := range owners {
			is(n, `goverbs_process_objects{device="%v",kind="%s",pid="",process="%s"}`, summary["ifname"], kind, owner)
		}
	}
	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	is(10000, `goverbs_process_memory_region_bytes{device="%v",pid="",process="%s"}`, summary["ifname"],
		strings.TrimSpace(string(comm)))
	for name, value := range rdmaTool(t, "statistic", "show")[0] {
		if name != "ifname" && name != "port" {
			is(value, `goverbs_hardware_events_total{counter="%s",device="%v",port="1"}`, name, summary["ifname"])
		}
	}
	is(1, `goverbs_port_active{device="%v",port="1"}`, summary["ifname"])
	t.Logf("%d values agree", compared)
	serveInGuest(t, values)
}

// serveInGuest checks that the server has the same metrics and can be stopped.
func serveInGuest(t *testing.T, once map[string]string) {
	server := exec.Command("goverbs", "exporter", "--listen", "127.0.0.1:0")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := server.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	at := strings.Fields(line)
	status, body := get(t, at[len(at)-1])
	assert.Equal(t, http.StatusOK, status)
	values := parseExport(t, body)
	for name, value := range once {
		if strings.HasPrefix(name, "goverbs_device_objects") {
			assert.Equal(t, value, values[name], name)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	assert.NoError(t, server.Wait())
}
