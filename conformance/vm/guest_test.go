// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// available returns the image and the program misbehave, for tests that boot a guest. Without QEMU or a cached kernel
// it skips the test, or fails it if GOVERBS_VM is set, as in make test.
func available(t *testing.T) (*Image, func(args ...string) Program) {
	t.Helper()
	image, err := Cached("6.1", CacheDir())
	if _, missing := exec.LookPath("qemu-system-x86_64"); missing != nil {
		err = errors.Join(err, ErrNoQEMU)
	}
	if err != nil && os.Getenv("GOVERBS_VM") == "" {
		t.Skipf("cannot boot guests: %v", err)
	}
	require.NoError(t, err)
	built, err := Build(t.Context(), t.TempDir(), []string{"./misbehave"}, nil, nil, time.Minute, t.Logf)
	require.NoError(t, err)
	return image, func(args ...string) Program {
		p := built[0]
		p.Args = args
		p.Name = args[0]
		return p
	}
}

// needEverything skips a test that boots guests for code that rarely changes.
func needEverything(t *testing.T) {
	t.Helper()
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("boots guests for this test only: make test-all runs it")
	}
}

// TestGuest boots one guest for all programs that leave the kernel intact: exit statuses, output, files, and hangs.
func TestGuest(t *testing.T) {
	image, program := available(t)
	sleep, deaf := program("sleep"), program("deaf")
	sleep.Timeout, deaf.Timeout = 3*time.Second, 3*time.Second
	var output bytes.Buffer
	guest := &Guest{Image: image, Output: &output, Log: t.Logf,
		Programs: []Program{program("0"), program("leave"), sleep, program("killed"), program("3"), deaf,
			program("hold"), program("0")}}
	o, err := guest.Run(t.Context())
	require.NoError(t, err)
	type result struct {
		program  string
		status   int
		signal   string
		timedOut bool
	}
	var got []result
	for _, r := range o.Results {
		got = append(got, result{r.Program, r.Status, r.Signal, r.TimedOut})
	}
	assert.Equal(t, []result{
		{"0", 0, "", false}, {"leave", 0, "", false}, {"sleep", 2, "", true}, {"killed", 137, "killed", false},
		{"3", 3, "", false}, {"deaf", 2, "", true}, {"hold", 1, "", false}, {"0", 0, "", false},
	}, got, "%s", o)
	assert.Equal(t, "it has exited, but the kernel still holds 1 ctx, 1 pd", o.Results[6].Text)
	assert.Equal(t, Hang, o.Kind)
	assert.Equal(t, "sleep", o.Program)
	assert.Regexp(t,
		`thread \d+ in system call \d+ .*\n(0x\w+ is /.*misbehave\+0x\w+\n)+(\[<0>\] .*\n)+`+
			`output after SIGQUIT:\nSIGQUIT: quit`,
		o.Detail)
	assert.Contains(t, o.Detail, "main.main()", "the sleeping goroutine")
	assert.Equal(t, map[string][]byte{"below/left": []byte("as it was\n\x00\xff")}, o.Files)
	assert.Contains(t, output.String(), "misbehave leave\ngiven to the guest\n<nil>\n")
	assert.Greater(t, o.Elapsed, o.Boot)
	assert.Greater(t, o.Boot, time.Second/2)
}

func TestGuestPanics(t *testing.T) {
	image, program := available(t)
	o, err := (&Guest{Image: image, NoDevice: true,
		Programs: []Program{program("0"), program("panic"), program("0")}}).Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Panic, o.Kind, "%s", o)
	assert.Equal(t, StatusKernel, o.ExitStatus())
	assert.Equal(t, "panic", o.Program)
	assert.Contains(t, o.Detail, "sysrq triggered crash")
	assert.Len(t, o.Results, 1)
}

func TestGuestLacksMemory(t *testing.T) {
	needEverything(t)
	image, program := available(t)
	o, err := (&Guest{Image: image, NoDevice: true, Memory: 256, Programs: []Program{program("oom")}}).Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, OutOfMemory, o.Kind, "%s", o)
	assert.Contains(t, o.Detail, "misbehave")
}

// TestGuestHangs checks that the host kills a hanging or cancelled guest, and that no QEMU process remains.
func TestGuestHangs(t *testing.T) {
	needEverything(t)
	image, program := available(t)
	o, err := (&Guest{Image: image, NoDevice: true, Timeout: 5 * time.Second,
		Programs: []Program{program("sleep")}}).Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Hang, o.Kind, "%s", o)
	assert.Contains(t, o.Detail, "the guest did not end within 5s; last output of the programs:\nmisbehave sleep")
	assert.Less(t, o.Elapsed-o.Boot, 30*time.Second)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = (&Guest{Image: image, NoDevice: true, Programs: []Program{program("sleep")}}).Run(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestGuestDoesNotStart checks that the error contains QEMU's message.
func TestGuestDoesNotStart(t *testing.T) {
	image, program := available(t)
	_, err := (&Guest{Image: image, NoDevice: true, CPUs: 100000, Programs: []Program{program("0")}}).Run(t.Context())
	assert.ErrorContains(t, err, "qemu-system-x86_64: exit status 1")
	assert.ErrorContains(t, err, "CPUs")
	t.Setenv("PATH", "")
	_, err = (&Guest{Image: image}).Run(t.Context())
	assert.ErrorIs(t, err, ErrNoQEMU)
}

// TestGuestBootsAgain boots a guest whose kernel first hangs, then panics, and then reaches init. On a busy machine it
// may boot more often.
func TestGuestBootsAgain(t *testing.T) {
	needEverything(t)
	image, program := available(t)
	defer func(usual int) { bootsAgain = usual }(bootsAgain)
	bootsAgain = 8
	guest := &Guest{Image: image, NoDevice: true, bootTime: time.Second / 10, Programs: []Program{program("0")}}
	var broke []string
	guest.Log = func(format string, args ...any) {
		t.Logf(format, args...)
		if !strings.Contains(format, "booting again") || !errors.Is(args[0].(error), errBroke) {
			return
		}
		switch broke = append(broke, args[0].(error).Error()); {
		case len(broke) == 1:
			guest.Append = "initcall_blacklist=netlink_proto_init"
		case strings.Contains(broke[len(broke)-1], "kernel BUG"):
			guest.Append = ""
		}
	}
	o, err := guest.Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Passed, o.Kind, "%s", o)
	require.GreaterOrEqual(t, len(broke), 2)
	assert.Contains(t, broke[0], "did not end within 100ms")
	assert.Empty(t, guest.Append, "it panicked, too")
}

// TestPairBreaksEarly checks that both guests of a pair are booted again, a limited number of times, if the kernel of
// one crashes early.
func TestPairBreaksEarly(t *testing.T) {
	needEverything(t)
	image, program := available(t)
	defer func(usual int) { bootsAgain = usual }(bootsAgain)
	bootsAgain = 1
	boots := 0
	log := func(format string, args ...any) {
		if strings.Contains(format, "booting both again") {
			boots++
		}
		t.Logf(format, args...)
	}
	broken := "initcall_blacklist=netlink_proto_init"
	outcomes, err := RunPair(t.Context(), [2]*Guest{
		{Image: image, Log: log, Programs: []Program{program("sleep")}},
		{Image: image, Append: broken, Programs: []Program{program("0")}},
	})
	require.NoError(t, err)
	assert.Equal(t, bootsAgain, boots)
	assert.Equal(t, Oops, outcomes[1].Kind, "%s", outcomes[1])
	assert.Equal(t, Broken, outcomes[0].Kind, "%s", outcomes[0])
}

// TestPairFails checks that if a program fails in one of two guests, neither guest runs the following programs, since
// each would wait for the other.
func TestPairFails(t *testing.T) {
	needEverything(t)
	image, program := available(t)
	outcomes, err := RunPair(t.Context(), [2]*Guest{
		{Image: image, Log: t.Logf, Programs: []Program{program("3"), program("sleep")}},
		{Image: image, Log: t.Logf, Programs: []Program{program("sleep"), program("0")}},
	})
	require.NoError(t, err)
	assert.Equal(t, Exited, outcomes[0].Kind, "%s", outcomes[0])
	assert.Len(t, outcomes[0].Results, 1)
	assert.Equal(t, Broken, outcomes[1].Kind, "%s", outcomes[1])
	assert.Less(t, outcomes[0].Elapsed-outcomes[0].Boot, 30*time.Second)
}

// TestSkipPassedPrograms checks that an unchanged program that has passed is skipped, whatever directory it was built
// in, and that a failed program runs again.
func TestSkipPassedPrograms(t *testing.T) {
	needEverything(t)
	image, _ := available(t)
	passed := t.TempDir()
	run := func(args ...string) *Outcome {
		var programs []Program
		for _, arg := range args {
			built, err := Build(t.Context(), t.TempDir(), []string{"./misbehave"}, nil, []string{arg}, time.Minute,
				t.Logf)
			require.NoError(t, err)
			built[0].Name = arg
			programs = append(programs, built...)
		}
		o, err := (&Guest{Image: image, NoDevice: true, Passed: passed, Programs: programs}).Run(t.Context())
		require.NoError(t, err)
		return o
	}
	first := run("0", "3")
	assert.Equal(t, Exited, first.Kind, "%s", first)
	assert.Len(t, first.Results, 2)
	again := run("3", "0")
	assert.Equal(t, Exited, again.Kind, "%s", again)
	require.Len(t, again.Results, 1)
	assert.Equal(t, "3", again.Results[0].Program)
	before := run("0")
	assert.True(t, before.Before)
	assert.Equal(t, Passed, before.Kind)
}

// TestNotes checks that a program of a pair counts as passed only if it passed in both guests without a failure of a
// kernel or guest.
func TestNotes(t *testing.T) {
	passed, failed := Result{}, Result{Status: 1}
	for name, c := range map[string]struct {
		outcomes []*Outcome
		want     []bool
	}{
		"all":         {[]*Outcome{{Kind: Passed, Results: []Result{passed, passed}}}, []bool{true, true}},
		"one":         {[]*Outcome{{Kind: Exited, Results: []Result{failed, passed}}}, []bool{false, true}},
		"not reached": {[]*Outcome{{Kind: Exited, Results: []Result{passed}}}, []bool{true, false}},
		"late":        {[]*Outcome{{Kind: Exited, Results: []Result{{TimedOut: true}, passed}}}, []bool{false, true}},
		"trouble":     {[]*Outcome{{Kind: Oops, Results: []Result{passed, passed}}}, []bool{false, false}},
		"no outcome":  {[]*Outcome{nil}, []bool{false, false}},
		"in one of two": {[]*Outcome{{Kind: Passed, Results: []Result{passed, passed}},
			{Kind: Exited, Results: []Result{passed, failed}}}, []bool{true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			all := notes{passedNote(dir, "a"), passedNote(dir, "b")}
			all.write(c.outcomes...)
			assert.Equal(t, c.want, []bool{all[0].exists(), all[1].exists()})
		})
	}
	none := notes{passedNote("", "a")}
	none.write(&Outcome{Kind: Passed, Results: []Result{passed}})
	assert.False(t, none[0].exists())
}

// TestDigest checks that the digest depends on all inputs of a guest, and that a program is hashed by its sources.
func TestDigest(t *testing.T) {
	image, program := available(t)
	initProgram, err := buildInit(t.Context(), t.TempDir())
	require.NoError(t, err)
	digest := func(change func(*Guest)) string {
		p := program("0")
		guest := &Guest{Image: image, NoDevice: true, Programs: []Program{p}}
		change(guest)
		digest, err := guest.digest(initProgram)
		require.NoError(t, err)
		return digest
	}
	same := digest(func(*Guest) {})
	assert.Equal(t, same, digest(func(*Guest) {}))
	executable, err := os.ReadFile(program("0").Host)
	require.NoError(t, err)
	other := filepath.Join(t.TempDir(), filepath.Base(program("0").Host))
	require.NoError(t, os.WriteFile(other, append(executable, "another"...), 0o755))
	assert.Equal(t, same, digest(func(g *Guest) { g.Programs[0].Host = other }))
	for what, change := range map[string]func(*Guest){
		"memory":         func(g *Guest) { g.Memory = 1000 },
		"processors":     func(g *Guest) { g.CPUs = 1 },
		"command line":   func(g *Guest) { g.Append = "quiet" },
		"source":         func(g *Guest) { g.Programs[0].Source = "another" },
		"arguments":      func(g *Guest) { g.Programs[0].Args = []string{"1"} },
		"no source":      func(g *Guest) { g.Programs[0].Source = "" },
		"one more file":  func(g *Guest) { g.Files = []File{{Name: "/etc/x", Host: other}} },
		"kernel modules": func(g *Guest) { g.NoDevice = false },
	} {
		assert.NotEqual(t, same, digest(change), what)
	}
}

// TestCounted checks that processors take turns if the clock counts instructions.
func TestCounted(t *testing.T) {
	g := Guest{Image: &Image{}, CPUs: 1}
	assert.NotContains(t, g.command("x"), "-icount")
	g.Counted = true
	line := strings.Join(g.command("x"), " ")
	assert.Contains(t, line, "tcg,thread=single")
	assert.Contains(t, line, "-icount shift=0")
}
