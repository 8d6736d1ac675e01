// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/recorded"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/headers"
	"github.com/goverbs/goverbs/runtime"
)

// enoughRounds is the number of rounds that cover all paths of a function.
const enoughRounds = 40

var rounds = flag.Int("rounds", defaultRounds, "calls of each function in each state of its slot")

// state is the state of a slot.
type state string

const (
	present     state = "the slot is set"
	null        state = "the slot is NULL"
	tooShort    state = "sz ends before the slot"
	longEnough  state = "sz includes the slot"
	notExtended state = "the context is not extended"
	noObject    state = "the object is NULL" // C crashes
)

// states returns the states in which to call a function.
func states(f *model.Func) []state {
	switch in := f.Inline; {
	case len(slotsOf(f)) == 0:
		return []state{present}
	case in.Guard != "":
		return []state{present, null, tooShort, longEnough, notExtended, noObject}
	case in.Struct == "" && in.Slot != "": // verbs_context without a guard
		return []state{present, null, notExtended, noObject}
	default:
		return []state{present, null, noObject}
	}
}

// slotsOf returns the slots that a function calls, directly or through other inline functions.
func slotsOf(f *model.Func) []string {
	if f == nil || f.Inline == nil {
		return nil
	}
	var all []string
	switch in := f.Inline; {
	case in.Slot != "" && in.Struct == "": // the local variable assigned from verbs_get_ctx
		all = append(all, "verbs_context."+in.Slot)
	case in.Slot != "":
		all = append(all, in.Struct+"."+in.Slot)
	}
	for _, name := range f.Inline.Calls {
		if f.Inline.Slot == "" {
			all = append(all, slotsOf(functions()[name])...)
		}
	}
	return all
}

// object returns the index of the argument from which C reads the slot.
func (c *call) object() int {
	name, _, _ := strings.Cut(c.f.Inline.Object, "->")
	for i, p := range c.f.Params {
		if p.Name == name {
			return i
		}
	}
	return 0
}

// enter puts the device into a state, and sets the expected result.
func (c *call) enter(s state) {
	if s == present {
		return
	}
	d, slots := c.b.device, slotsOf(c.f)
	if s == noObject {
		c.args[c.object()] = 0
		c.crash, c.nothing = true, true
		return
	}
	if s == null {
		for _, name := range slots {
			*d.slot(name) = 0
		}
	}
	first := uintptr(unsafe.Pointer(d.slot(slots[0]))) - uintptr(unsafe.Pointer(d.VerbsContext))
	behind := uint64(unsafe.Sizeof(ibv.VerbsContext{}) - first)
	switch s {
	case tooShort:
		d.VerbsContext.Sz = behind - 1
	case longEnough:
		d.VerbsContext.Sz = behind
		return
	case notExtended:
		d.Context.ABICompat = 0
	}
	c.lacking = true
	c.crash = c.f.Inline.Guard == "" && s != longEnough
	if special, ok := absent[c.f.Name]; ok {
		special(c)
	}
}

// run calls the function in C and in Go, and compares all observable effects.
func (c *call) run(fn reflect.Value) error {
	d, s := c.b.device, c.b.stub
	before := bytes.Clone(d.Memory())
	start := func() {
		copy(d.Memory(), before)
		s.ResetLog()
		for name, r := range c.results {
			s.Script(name, r...)
		}
	}
	args, err := c.goArguments(fn.Type())
	if err != nil {
		return err
	}
	var log []byte
	memory := before
	if !c.crash {
		start()
		c.inC.result, c.inC.errno = s.Call(c.f.Name, c.args...)
		log, memory = bytes.Clone(s.RawLog()), bytes.Clone(d.Memory())
		c.log = s.decode(log)
	}
	start()
	got := fn.Call(args)
	goLog := bytes.Clone(s.RawLog())
	if !bytes.Equal(log, goLog) {
		return fmt.Errorf("different calls\nC: %v\nGo: %v", c.log, s.decode(goLog))
	}
	if at := differ(memory, d.Memory()); at >= 0 {
		return fmt.Errorf("memory differs at %s: C has %#x, Go %#x", d.where(at), end(memory, at),
			end(d.Memory(), at))
	}
	if c.nothing {
		return refused(got)
	}
	missing := c.crash || c.lacking && len(log) == 0 &&
		(c.inC.errno == syscall.EOPNOTSUPP || runtime.Errno(c.inC.result) == syscall.EOPNOTSUPP)
	if compare, ok := results[c.f.Name]; ok && !missing {
		return compare(c, c.inC, got)
	}
	return c.inC.check(c.f, convention(c.f.Name), missing, got)
}

// where returns the object at an offset of the device's memory.
func (d *Device) where(at int) string {
	for name, p := range d.stub.places {
		if uintptr(at) >= p.offset && uintptr(at) < p.offset+p.size {
			return fmt.Sprintf("%s + %d", name, at-int(p.offset))
		}
	}
	return fmt.Sprint(at)
}

func (c *call) describe() string {
	return fmt.Sprintf("%s%#x with %+v", c.f.Name, c.args, c.results)
}

// TestCalls calls every function of every header, inline or exported, in C and in Go with the same arguments, device
// and scripted results. Both must make the same calls and memory writes, and Go must return C's result.
func TestCalls(t *testing.T) {
	b := newBench(t)
	image := bytes.Clone(b.device.Memory())
	b.stub.Readable(b.device.Memory())
	for _, library := range libraries {
		require.NoError(t, library.SetPath(b.stub.Path))
	}
	skipped := 0
	for _, name := range slices.Sorted(maps.Keys(functions())) {
		f := functions()[name]
		fn, ok := goFunctions[name]
		if !ok {
			assert.Contains(t, uncallable(), name, "%s has neither a Go function nor a row in gen/rules/verbs.txt",
				name)
			continue
		}
		if !b.stub.HasCall(name) {
			skipped++
			if f.Inline == nil {
				assert.NoError(t, b.missing(f, reflect.ValueOf(fn)))
			}
			continue
		}
		if reason, ok := newer[name]; ok && b.stub.Release != headers.Primary("rdma-core") {
			t.Logf("%s is not called: in the headers of %s %s", name, b.stub.Release, reason)
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, s := range states(f) {
				seen := map[string]bool{}
				for range *rounds {
					copy(b.device.Memory(), image)
					clear(b.stub.scripts)
					c := b.newCall(f)
					c.script()
					if special, ok := arguments[name]; ok {
						special(c)
					}
					c.enter(s)
					if err := c.run(reflect.ValueOf(fn)); err != nil {
						t.Fatalf("seed %d: %s: %s:\n%v", *seed, s, c.describe(), err)
					}
					seen[outcomeOf(c)] = true
				}
				for _, want := range outcomes[name] {
					if s == present && *rounds >= enoughRounds {
						assert.True(t, seen[want], "no call made %q: %v", want, seen)
					}
				}
			}
		})
	}
	if skipped > 0 {
		t.Logf("%d functions are newer than the headers of %s, the newest available", skipped, b.stub.Release)
	}
}

// missing calls a function that the library does not export, and checks that the error has the release that introduced
// it.
func (b *bench) missing(f *model.Func, fn reflect.Value) error {
	c := &call{b: b, f: f, args: make([]uint64, len(f.Params))}
	args, err := c.goArguments(fn.Type())
	if err != nil {
		return err
	}
	got := fn.Call(args)
	err, _ = got[len(got)-1].Interface().(error)
	var not *runtime.NotSupportedError
	if !errors.As(err, &not) || !strings.HasSuffix(not.Function, f.Name) || not.Since == "" {
		return fmt.Errorf("%s is missing in the library, but the error is %v", f.Name, err)
	}
	return nil
}

// refused checks the error for a nil pointer that Go dereferences.
func refused(got []reflect.Value) error {
	err, _ := got[len(got)-1].Interface().(error)
	var null *runtime.NilError
	if !errors.As(err, &null) || !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("the object is NULL, but the error is %v", err)
	}
	return nil
}

// TestOlderProviders is TestCalls with providers and libraries of older releases, which have shorter structures and
// export fewer functions.
func TestOlderProviders(t *testing.T) {
	if os.Getenv(EnvHeaders) != "" {
		t.Skip("this is the test of one older provider")
	}
	root, err := moduleRoot()
	require.NoError(t, err)
	_, all, err := recorded.Releases()
	require.NoError(t, err)
	for _, r := range all.Of(rdmaCore.Name) {
		release := r.Name
		if release == headers.Primary(rdmaCore.Name) {
			continue
		}
		include := filepath.Join(root, "headers", "cache", rdmaCore.File(release), "include")
		if _, err := os.Stat(include); err != nil {
			t.Logf("not tested with %s: its headers are missing; run make headers", release)
			continue
		}
		cmd := exec.Command(os.Args[0], "-test.run", "^(TestCalls|TestBuilderRegion|TestRecv)$", "-rounds", "6",
			"-seed", fmt.Sprint(*seed))
		cmd.Env = append(os.Environ(), EnvHeaders+"="+include)
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.ENOEXEC) {
			t.Skip("the emulator that runs this test cannot start it again: older providers " +
				"are tested on native machines only")
		}
		assert.NoError(t, err, "%s:\n%s", release, out)
	}
}

// uncallable returns the C functions without a Go function.
func uncallable() []string {
	text, err := os.ReadFile("../../gen/rules/verbs.txt")
	if err != nil {
		panic(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "skip" {
			all = append(all, words[1])
		}
	}
	return all
}

// TestInlinesAreCovered checks that TestCalls covers every inline function in the tables.
func TestInlinesAreCovered(t *testing.T) {
	n := 0
	for _, table := range tables {
		for _, f := range table {
			if f.Inline != nil {
				n++
				assert.Contains(t, goFunctions, f.Name)
				assert.Contains(t, functions(), f.Name)
			}
		}
	}
	assert.Greater(t, n, 150)
}
