// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/internal/defects"
)

// simulated is a simulated host.
type simulated struct {
	files, later fstest.MapFS
	interfaces   map[string]Interface
	env          map[string]string
	denied       map[string]error
	library      string
}

// edit changes the host. The syntax of a line:
//
//	PATH = TEXT               create a file
//	PATH + TEXT               append a line to a file
//	PATH -> TARGET            create a symbolic link
//	later PATH = TEXT         contents of a file at the second reading of the counters
//	rm PATH                   remove a file or a tree
//	interface NAME MTU up|down ADDRESS…
//	rm interface NAME
//	env NAME VALUE
//	deny PATH ERRNO           opening the node fails
//	library NAME              library that opens kernel devices; "native" opens those of rxe
func (p *simulated) edit(t *testing.T, line string) {
	words := strings.Fields(line)
	name, text, isFile := strings.Cut(line, " = ")
	more, added, isLine := strings.Cut(line, " + ")
	switch {
	case words[0] == "rm" && words[1] == "interface":
		require.Contains(t, p.interfaces, words[2])
		delete(p.interfaces, words[2])
	case words[0] == "rm":
		n := len(p.files)
		maps.DeleteFunc(p.files, func(name string, _ *fstest.MapFile) bool {
			return name == words[1] || strings.HasPrefix(name, words[1]+"/")
		})
		require.Less(t, len(p.files), n, line)
	case words[0] == "interface":
		mtu, err := strconv.Atoi(words[2])
		require.NoError(t, err, line)
		one := Interface{Name: words[1], MTU: mtu, Up: words[3] == "up"}
		for _, a := range words[4:] {
			one.Addresses = append(one.Addresses, netip.MustParsePrefix(a))
		}
		p.interfaces[words[1]] = one
	case words[0] == "env":
		p.env[words[1]] = words[2]
	case words[0] == "deny":
		p.denied[words[1]] = map[string]error{"EACCES": syscall.EACCES, "EPERM": syscall.EPERM}[words[2]]
		require.Error(t, p.denied[words[1]], line)
	case words[0] == "library":
		p.library = words[1]
	case words[0] == "later":
		name := strings.TrimPrefix(name, "later ")
		require.Contains(t, p.files, name)
		p.later[name] = &fstest.MapFile{Data: []byte(text)}
	case isFile:
		p.files[name] = &fstest.MapFile{Data: []byte(text + "\n"), Mode: 0o644}
	case isLine:
		require.Contains(t, p.files, more)
		p.files[more] = &fstest.MapFile{Data: append(slices.Clone(p.files[more].Data), added+"\n"...), Mode: 0o644}
	case words[1] == "->":
		p.files[words[0]] = &fstest.MapFile{Data: []byte(words[2]), Mode: fs.ModeSymlink | 0o777}
	default:
		t.Fatalf("unknown edit %q", line)
	}
}

func newSimulated(t *testing.T, name string) *simulated {
	text, err := os.ReadFile("testdata/" + name + ".txt")
	require.NoError(t, err)
	p := &simulated{files: fstest.MapFS{}, later: fstest.MapFS{}, interfaces: map[string]Interface{},
		env: map[string]string{}, denied: map[string]error{}}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			p.edit(t, line)
		}
	}
	return p
}

func (p *simulated) host() *Host {
	later := maps.Clone(p.files)
	maps.Copy(later, p.later)
	h := &Host{FS: p.files, Later: later, Interval: time.Second, Env: func(name string) string { return p.env[name] },
		Software: func(name string) bool { return name == "soft0" }, Library: p.library,
		NeedsLibrary: func(device string) bool { return !strings.HasPrefix(device, "rxe") },
		Open: func(path string) error {
			if err := p.denied[path]; err != nil {
				return &fs.PathError{Op: "open", Path: path, Err: err}
			}
			_, err := fs.Stat(p.files, path)
			return err
		}}
	for _, name := range slices.Sorted(maps.Keys(p.interfaces)) {
		h.Interfaces = append(h.Interfaces, p.interfaces[name])
	}
	return h
}

// TestHealthyHost checks that a healthy host has no findings.
func TestHealthyHost(t *testing.T) {
	for _, name := range []string{"mlx5", "efa", "rxe"} {
		r := Examine(newSimulated(t, name).host())
		assert.Empty(t, r.Findings, name)
		assert.NotEmpty(t, r.Devices, name)
		var text bytes.Buffer
		require.NoError(t, r.WriteText(&text))
		assert.Contains(t, text.String(), "nodes, libraries, limits")
	}
}

// TestEmptyHost checks a host that has neither devices nor libraries.
func TestEmptyHost(t *testing.T) {
	p := newSimulated(t, "rxe")
	p.edit(t, "rm sys/class/infiniband")
	p.edit(t, "rm usr/lib/x86_64-linux-gnu")
	var causes []string
	r := Examine(p.host())
	for _, f := range r.Findings {
		causes = append(causes, f.Cause)
	}
	assert.Equal(t, []string{"devices.none", "libraries.verbs"}, causes)
	assert.Equal(t, []string{"devices", "libraries", "cgroup", "env"}, r.Checks)
	assert.Contains(t, r.Skipped, "nodes")
}

// TestNative checks that package native needs no libraries for a driver that it has.
func TestNative(t *testing.T) {
	p := newSimulated(t, "rxe")
	p.edit(t, "rm usr/lib/x86_64-linux-gnu")
	p.edit(t, "library native")
	r := Examine(p.host())
	assert.Empty(t, r.Findings)
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text))
	assert.Contains(t, text.String(), "\nlibrary  native\n")
}

// TestFaults checks that each fault yields exactly one finding.
func TestFaults(t *testing.T) {
	text, err := os.ReadFile("testdata/faults.txt")
	require.NoError(t, err)
	seen, n := map[string]bool{}, 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		columns := strings.SplitN(line, "|", 3)
		require.Len(t, columns, 3, line)
		on, id := strings.TrimSpace(columns[0]), strings.TrimSpace(columns[1])
		n++
		seen[id] = true
		t.Run(fmt.Sprintf("%s on %s", id, on), func(t *testing.T) {
			p := newSimulated(t, on)
			for edit := range strings.SplitSeq(columns[2], "; ") {
				p.edit(t, strings.TrimSpace(edit))
			}
			r := Examine(p.host())
			require.Len(t, r.Findings, 1, "%+v", r.Findings)
			f := r.Findings[0]
			assert.Equal(t, id, f.Cause)
			assert.NotEmpty(t, f.Where)
			assert.NotContains(t, f.What+f.Fix, "%!", "the number of facts does not match the fix")
			topic, _, _ := strings.Cut(id, ".")
			assert.True(t, strings.HasSuffix(f.Link, "#"+topic))
		})
	}
	assert.Greater(t, n, 60)
	for _, c := range causes {
		if !strings.HasPrefix(c.id, "pair.") { // TestPairFaults has these
			assert.True(t, seen[c.id], "no fault tests %s", c.id)
		}
	}
}

// TestKnownDefects checks that known defects which an update fixes are reported for a host with an adapter of the
// provider, from the first release that has the defect, and not for the release that fixes it.
func TestKnownDefects(t *testing.T) {
	// returns the reported defects of a host with the given release
	names := func(t *testing.T, library, release string) []string {
		on, module, driver := "efa", "efa", library
		switch library {
		case "librdmacm", "libibverbs", "rxe":
			on, module, driver = "rxe", "rdma_rxe", "rdma_rxe"
		case "mlx5":
			driver = "mlx5_core"
		case "bnxt_re":
			driver = "bnxt_en"
		}
		p := newSimulated(t, on)
		for name, file := range p.files {
			to := strings.ReplaceAll(name, module, driver)
			file.Data = bytes.ReplaceAll(file.Data, []byte("drivers/"+module), []byte("drivers/"+driver))
			delete(p.files, name)
			p.files[to] = file
		}
		p.edit(t, "usr/lib/x86_64-linux-gnu/libibverbs/lib"+library+"-rdmav34.so = library")
		p.edit(t, "etc/libibverbs.d/"+library+".driver = driver "+library)
		for _, l := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
			p.edit(t, "usr/lib/x86_64-linux-gnu/"+l+" -> "+l+".9."+release)
			p.edit(t, "usr/lib/x86_64-linux-gnu/"+l+".9."+release+" = lib%s-rdmav34.so")
		}
		for _, f := range Examine(p.host()).Findings {
			if f.Cause != "libraries.defects" {
				continue // a driver may need modules that the host lacks
			}
			for part := range strings.SplitSeq(f.What, "; ") {
				if _, list, ok := strings.Cut(part, library+": "); ok {
					return strings.Split(list, ", ")
				}
			}
		}
		return nil
	}
	n := 0
	for _, d := range defects.All() {
		if len(d.Fixed) == 0 {
			continue // no release fixes it
		}
		n++
		t.Run(d.Library+" "+d.Name, func(t *testing.T) {
			assert.Contains(t, names(t, d.Library, d.Since), d.Name)
			assert.NotContains(t, names(t, d.Library, d.Fixed[0]), d.Name)
		})
	}
	assert.Greater(t, n, 50)
}
