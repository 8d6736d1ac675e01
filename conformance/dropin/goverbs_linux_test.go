// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"encoding/json"
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
)

var command = sync.OnceValues(func() (string, error) {
	if inGuest() {
		return exec.LookPath("goverbs") // installed by vmtest -with ./cmd/goverbs
	}
	dir, err := libraries() // removed after the tests
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "goverbs")
	out, err := exec.Command("go", "build", "-o", program, "../../cmd/goverbs").CombinedOutput()
	if err != nil {
		return "", &buildError{string(out), err}
	}
	return program, nil
})

// goverbs builds the command once.
func goverbs(t *testing.T) string {
	program, err := command()
	require.NoError(t, err)
	return program
}

// inGuest reports whether this is a guest with Soft-RoCE, which has rdma-core's libraries and cannot build.
func inGuest() bool { return os.Getenv("GOVERBS_GUEST") != "" }

// cNames maps names of ibv_devinfo that differ from C.
var cNames = map[string]string{"InfiniBand": "IB", "Ethernet": "ETHERNET"}

// TestQuery compares goverbs query with ibv_devinfo -v for values that both print.
func TestQuery(t *testing.T) {
	device, dir := os.Getenv("GOVERBS_DEVICE"), ""
	if !inGuest() {
		device, dir = "soft@"+freeAddress(t), built(t)
	}
	if _, err := exec.LookPath("ibv_devinfo"); err != nil {
		t.Skip("ibv_devinfo is not installed: make deps installs ibverbs-utils")
	}
	devinfo := with(t, dir, "ibv_devinfo", "-v")
	devinfo.Env = append(devinfo.Env, "GOVERBS_DEVICE="+device)
	devinfoOut, err := devinfo.Output()
	require.NoError(t, err, "%s", devinfoOut)
	queryOut, err := exec.Command(goverbs(t), "--json", "query", device).Output()
	require.NoError(t, err)
	var report map[string]any
	decoder := json.NewDecoder(bytes.NewReader(queryOut))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&report))
	printed := map[string]any{}
	flatten(printed, report)
	compared := 0
	for line := range strings.Lines(string(devinfoOut)) {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if m := regexp.MustCompile(`^GID\[ *(\d+)\]$`).FindStringSubmatch(name); m != nil {
			gid, _, _ := strings.Cut(value, ",")
			assert.Contains(t, string(queryOut), `"gid": "`+gid+`"`)
			compared++
			continue
		}
		got, exists := printed[name]
		if !ok || !exists || value == "" {
			continue
		}
		if strings.HasSuffix(name, "_guid") && !inGuest() {
			continue // differs between processes on the software device
		}
		compared++
		assert.True(t, same(got, value), "%s: ibv_devinfo prints %q, goverbs query %v", name, value, got)
	}
	assert.Greater(t, compared, 60, "%s", devinfoOut)
	t.Logf("%d values agree", compared)
}

// flatten collects all named values of a document.
func flatten(to map[string]any, from any) {
	switch from := from.(type) {
	case []any:
		for _, one := range from {
			flatten(to, one)
		}
	case map[string]any:
		for name, value := range from {
			switch value.(type) {
			case map[string]any, []any:
				flatten(to, value)
			default:
				if _, ok := to[name]; !ok {
					to[name] = value
				}
			}
		}
	}
}

// unit matches a unit that follows a number without a space.
var unit = regexp.MustCompile(`(kHZ|kbps)$`)

// same compares a value with text of ibv_devinfo: a number, a name, or both.
func same(ourValue any, text string) bool {
	words := strings.Fields(text)
	if name, ok := ourValue.(string); ok {
		if other, ok := cNames[words[0]]; ok {
			words[0] = other
		}
		return name == words[0] || strings.HasSuffix(name, "_"+words[0]) || name == text
	}
	number, err := strconv.ParseUint(ourValue.(json.Number).String(), 10, 64)
	if err != nil {
		return false
	}
	candidates := words[:1]
	if _, err := strconv.ParseUint(unit.ReplaceAllString(words[0], ""), 0, 64); err != nil {
		candidates = nil // a name, or 2.5, followed by the number
		for _, word := range words[1:] {
			if strings.HasPrefix(word, "(") {
				candidates = append(candidates, strings.Trim(word, "()"))
			}
		}
	}
	for _, word := range candidates {
		if n, err := strconv.ParseUint(unit.ReplaceAllString(word, ""), 0, 64); err == nil && n == number {
			return true
		}
	}
	return false
}

// TestWithoutLibraries checks that without libibverbs goverbs opens kernel devices by package native.
func TestWithoutLibraries(t *testing.T) {
	if !inGuest() {
		t.Skip("needs a kernel device: make vm runs this in a guest")
	}
	device := os.Getenv("GOVERBS_DEVICE")
	say := func(args ...string) string {
		out, err := exec.Command(goverbs(t), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	gids := say("gids", device)
	const library = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"
	require.NoError(t, os.Rename(library, "/hidden"))
	defer func() { require.NoError(t, os.Rename("/hidden", library)) }()
	assert.Equal(t, gids, say("gids", device))
	devices := say("devices")
	assert.Regexp(t, device+` +1 +kernel +ACTIVE +ETHERNET +\d`, devices)
	assert.Contains(t, devices, "\nkernel devices by native\n")
	report := say("query", device)
	assert.Contains(t, report, device+": kernel device (native)\n")
	assert.Regexp(t, `state +PORT_ACTIVE`, report)
	assert.Regexp(t, `driver|parent`, report)
}

// TestPing runs goverbs ping against rdma-core's programs, and these against goverbs serve.
func TestPing(t *testing.T) {
	dir := ""
	if !inGuest() {
		dir = built(t)
	}
	if _, err := exec.LookPath("rping"); err != nil {
		t.Skip("rping is not installed: make deps installs rdmacm-utils and ibverbs-utils")
	}
	ours := goverbs(t)
	for _, p := range []struct{ name, server, client string }{
		{"rping server", "rping -s -a SERVER -p PORT", "goverbs --json ping -k cm --cm-port PORT SERVER"},
		{"rping client", "goverbs serve -p PORT --cm-port PORT", "rping -c -a SERVER -p PORT -C 10 -V"},
		{"ibv_rc_pingpong server", "ibv_rc_pingpong -g GID -n 10 -p PORT",
			"goverbs --json ping --pingpong -k rc -s 4096 -p PORT SERVER"},
		{"ibv_rc_pingpong client", "goverbs serve -p PORT --cm-port 0",
			"ibv_rc_pingpong -g GID -n 100 -c -p PORT SERVER"},
		{"ibv_ud_pingpong server", "ibv_ud_pingpong -g GID -n 10 -s 1000 -p PORT",
			"goverbs --json ping --pingpong -k ud -s 1000 -p PORT SERVER"},
		{"ibv_ud_pingpong client", "goverbs serve --pingpong ud -p PORT --cm-port 0",
			"ibv_ud_pingpong -g GID -n 100 -s 1000 -p PORT SERVER"},
		{"goverbs server", "goverbs serve -p PORT --cm-port PORT",
			"goverbs --json ping -p PORT --cm-port PORT SERVER"},
	} {
		t.Run(p.name, func(t *testing.T) {
			port := freePort(t)
			device := os.Getenv("GOVERBS_DEVICE")
			serverDevice, address, gid := device, os.Getenv("GOVERBS_ADDRESS"), "1"
			if !inGuest() {
				t.Parallel()
				address, gid = freeAddress(t), "0"
				serverDevice, device = "soft@"+address, "soft@"+freeAddress(t)
			}
			at := func(device, command string) *exec.Cmd {
				names := strings.NewReplacer("SERVER", address, "PORT", port, "GID", gid)
				words := strings.Fields(names.Replace(command))
				if words[0] == "goverbs" {
					words[0] = ours
				}
				cmd := with(t, dir, words[0], words[1:]...)
				cmd.Env = append(cmd.Env, "GOVERBS_DEVICE="+device)
				return cmd
			}
			var printed bytes.Buffer
			server := at(serverDevice, p.server)
			server.Stdout, server.Stderr = &printed, &printed
			require.NoError(t, server.Start())
			done := make(chan error, 1)
			go func() { done <- server.Wait() }()
			defer func() {
				_ = server.Process.Kill()
				<-done
				if t.Failed() {
					t.Logf("server output: %s", &printed)
				}
			}()
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				out, err := at(device, p.client).CombinedOutput()
				if err == nil {
					if strings.HasPrefix(p.client, "goverbs") {
						assert.Contains(t, string(out), `"received": 10`)
						assert.NotContains(t, string(out), `"failure"`)
					}
					return
				}
				if time.Now().After(deadline) || len(done) > 0 { // it may not listen yet
					require.NoError(t, err, "%s", out)
				}
			}
		})
	}
}
