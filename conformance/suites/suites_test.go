// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

var update = flag.Bool("update", false, "write docs/suites.md")

// TestPage compares docs/suites.md, which make docs writes. It also reads all cases and expected results, and checks
// that each failure has a reason.
func TestPage(t *testing.T) {
	want, err := Page(root)
	require.NoError(t, err)
	name := filepath.Join(root, "docs", "suites.md")
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, want, string(got), "docs/suites.md is stale: make docs writes it")
}

// TestExpectedResultsHaveCases checks that there are expected results for exactly the existing cases, on the software
// device and on the kernels on which a suite runs.
func TestExpectedResultsHaveCases(t *testing.T) {
	for _, kernel := range append([]string{""}, Kernels...) {
		for _, name := range Names {
			s, err := Read(name)
			require.NoError(t, err)
			want, err := Expected(ResultsOf("results", kernel), name)
			require.NoError(t, err)
			if kernel == "" || !s.Rxe {
				assert.Equal(t, kernel == "", len(want) > 0, "%s has results on %q", name, kernel)
			}
			if s.Python != "" || len(want) == 0 {
				continue
			}
			var cases, expected []string
			for _, c := range s.Cases {
				if s.On(kernel, c.Name) {
					cases = append(cases, c.Name)
				}
			}
			for _, w := range want {
				expected = append(expected, w.Case)
			}
			assert.Equal(t, cases, expected, "go run ./conformance/suites/cmd/suites -kernel %q -suites %s -update",
				kernel, name)
		}
	}
	files, err := filepath.Glob("cases/*.txt")
	require.NoError(t, err)
	assert.Len(t, Names, len(files), "each file of cases is a suite in Names")
}

func runner(t *testing.T) *Runner {
	return &Runner{Libraries: t.TempDir(), Cache: t.TempDir(), Log: t.Logf}
}

// TestRun checks the results of pairs of common programs.
func TestRun(t *testing.T) {
	s, err := parse("made", "made.txt", `
@ limit 20s
@ skips 77
alone         |                    | X=hello printenv X            | hello
other words   |                    | X=hello printenv X            | goodbye
status        |                    | false
skipped       |                    | sh -c exit${IFS}77
both          | true               | true
server fails  | false              | true
server stays  | & sleep 3600       | printenv GOVERBS_DEVICE       | soft@127.
no program    |                    | goverbs-has-no-such-program
@ client X={case} printenv X
@ prints for-all
for-all
other
own           |                    | X=own printenv X              | own
`)
	require.NoError(t, err)
	ends := map[string]string{}
	for _, c := range s.Cases {
		ends[c.Name] = runner(t).Run(t.Context(), s, c).String()
	}
	assert.Equal(t, map[string]string{
		"alone":        "pass",
		"other words":  `fail ("goodbye" is not in the output: hello)`,
		"status":       "fail (exit status 1: )",
		"skipped":      "skip",
		"both":         "pass",
		"server fails": "fail (server: exit status 1: )",
		"server stays": "pass",
		"for-all":      "pass",
		"other":        `fail ("for-all" is not in the output: other)`,
		"own":          "pass",
		"no program":   `fail (exec: "goverbs-has-no-such-program": executable file not found in $PATH)`,
	}, ends)
}

// TestAgain checks that a case runs again only if it failed because of the suite's known race.
func TestAgain(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("echo >>$1; echo late; test $(wc -l <$1) -ge $2\n"), 0o600))
	once := func(n string) string { return "sh " + script + " " + filepath.Join(t.TempDir(), "tries") + " " + n }
	for again, ends := range map[string][]string{"late": {Pass, Fail}, "later": {Fail, Fail}} {
		s, err := parse("made", "made.txt", "@ again "+again+"\nthird | | "+once("3")+"\nsixth | | "+once("6")+"\n")
		require.NoError(t, err)
		all, err := runner(t).All(t.Context(), s, func(string) bool { return true })
		require.NoError(t, err)
		assert.Equal(t, ends, []string{all[0].Ends, all[1].Ends}, again)
	}
}

// TestNetwork checks that programs of a suite with a network have two addresses other than loopback.
func TestNetwork(t *testing.T) {
	s, err := parse("made", "made.txt", `
@ network own
@ limit 20s
addresses | | ip -4 -o addr show up | 192.0.2.2
`)
	require.NoError(t, err)
	all, err := runner(t).All(t.Context(), s, func(string) bool { return true })
	if err != nil {
		t.Skip("cannot create a namespace: ", err)
	}
	assert.Equal(t, []Result{{Case: "addresses", Ends: Pass}}, all)
}

// hangs writes a script that hangs, with a child that hangs as well. gone waits until both have exited.
func hangs(t *testing.T) (script string, gone func()) {
	pids := filepath.Join(t.TempDir(), "pid")
	script = filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("sleep 3600 & echo $! >"+pids+"; wait\n"), 0o600))
	return script, func() {
		pid, err := os.ReadFile(pids)
		require.NoError(t, err)
		assert.Eventually(t, func() bool {
			stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, 10*time.Second, 10*time.Millisecond, "sleep is still running")
	}
}

// TestRunEnds checks that a hanging program fails and is killed with its children.
func TestRunEnds(t *testing.T) {
	script, gone := hangs(t)
	s := &Suite{Limit: 300 * time.Millisecond}
	r := runner(t).Run(t.Context(), s, Case{Name: "hangs", Client: []string{"sh", script}})
	assert.Equal(t, "fail (it did not end in time: )", r.String())
	gone()
}

// TestBuildEnds checks that a hanging build script is killed with its children.
func TestBuildEnds(t *testing.T) {
	script, gone := hangs(t)
	assert.ErrorContains(t, Build(t.Context(), "sh", 300*time.Millisecond, script), "did not finish in 300ms")
	gone()
	assert.ErrorContains(t, Build(t.Context(), "/bin/false", time.Minute), "/bin/false: exit status 1")
	assert.NoError(t, Build(t.Context(), "/bin/true", time.Minute))
}

// TestCompare checks that differences in either direction and rows without a case are reported.
func TestCompare(t *testing.T) {
	pass, fail := Result{Case: "a", Ends: Pass}, Result{Case: "a", Ends: Fail, Reason: "b"}
	skip := Result{Case: "a", Ends: Skip, Reason: "no such device"}
	other := Result{Case: "a", Ends: Skip, Reason: "no such port"}
	for _, c := range []struct {
		want, got []Result
		differs   string
	}{
		{[]Result{pass}, []Result{pass}, ""},
		{[]Result{fail}, []Result{{Case: "a", Ends: Fail, Reason: "other words"}}, ""},
		{[]Result{fail}, []Result{pass}, "s: a: got pass, want fail (b)"},
		{[]Result{pass}, []Result{fail}, "s: a: got fail (b), want pass"},
		{[]Result{skip}, []Result{other}, "s: a: got skip (no such port), want skip (no such device)"},
		{nil, []Result{pass}, "s: a: pass, without a row"},
		{[]Result{pass}, nil, "s: a: expected, but no such case ran; delete its row"},
	} {
		err := Compare("s", c.want, c.got)
		if c.differs == "" {
			assert.NoError(t, err)
		} else {
			assert.EqualError(t, err, c.differs)
		}
	}
}

// TestUpdate checks that existing reasons are kept, and that missing ones are marked.
func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	old := []Result{{Case: "a", Ends: Fail, Reason: "ours"}, {Case: "gone", Ends: Pass}}
	now := []Result{{Case: "a", Ends: Fail, Reason: "theirs"}, {Case: "b", Ends: Pass}}
	require.NoError(t, Update(dir, "s", old, now))
	got, err := Expected(dir, "s")
	require.NoError(t, err)
	assert.Equal(t, []Result{{Case: "a", Ends: Fail, Reason: "ours"}, {Case: "b", Ends: Pass}}, got)

	require.NoError(t, Update(dir, "s", got, []Result{{Case: "c", Ends: Fail, Reason: "theirs"}}))
	_, err = Expected(dir, "s")
	assert.ErrorContains(t, err, "s.txt:4: fail: write the reason in the third column")

	dir = ResultsOf(dir, "6.1") // on kernels, the output is the reason
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, Update(dir, "s", nil, []Result{{Case: "c", Ends: Fail, Reason: "theirs"}}))
	got, err = Expected(dir, "s")
	require.NoError(t, err)
	assert.Equal(t, []Result{{Case: "c", Ends: Fail, Reason: "theirs"}}, got)
}

// TestRead parses output of the script for pyverbs' tests.
func TestRead(t *testing.T) {
	got, begun := read("begin\ta\npass\ta\nnoise\nbegin\tb\nskip\tb\tno such device\n" +
		"begin\tc\nfail\tc\tFile x\\nError: y\\n\nbegin\td\n")
	assert.Equal(t, "d", begun)
	assert.Equal(t, []Result{{Case: "a", Ends: Pass}, {Case: "b", Ends: Skip, Reason: "no such device"},
		{"c", Fail, "Error: y", "File x\nError: y\n"}}, got)
}

// TestOnKernel checks that programs get the device's name, address and GID without the drop-in libraries, and that
// cases that take too long are omitted.
func TestOnKernel(t *testing.T) {
	s, err := parse("made", "made.txt", `
@ rxe without -a$
@ limit 10s
device | | echo {device} {server} {client} {gid} | rxe0 192.0.2.1 192.0.2.1 3
none   | | env -u GOVERBS_DEVICE printenv LD_LIBRARY_PATH
all -a | | true
`)
	require.NoError(t, err)
	t.Setenv("LD_LIBRARY_PATH", "")
	var events []string
	r := &Runner{Kernel: &Kernel{Device: "rxe0", Address: "192.0.2.1", GID: "3", Slower: 2}, Log: t.Logf,
		Begins: func(name string) { events = append(events, name) },
		Ended:  func(r Result) { events = append(events, r.Ends) }}
	all, err := r.All(t.Context(), s, func(name string) bool { return s.On("6.1", name) })
	require.NoError(t, err)
	assert.Equal(t, []Result{{Case: "device", Ends: Pass}, {Case: "none", Ends: Pass}}, all)
	assert.Equal(t, []string{"device", Pass, "none", Pass}, events)
	assert.Equal(t, 20*time.Second, r.limit(s))
	assert.True(t, s.On("", "all -a"))
}

func TestCasesRefuse(t *testing.T) {
	_, err := parse("s", "s.txt", "@ limit never\n@ colour red\na\n@ build it\n")
	assert.ErrorContains(t, err, `s.txt:1: time: invalid duration "never"`)
	assert.ErrorContains(t, err, "s.txt:2: @ colour red; want @ title TEXT")
	assert.ErrorContains(t, err, "s.txt:4: @ build it; want @ title TEXT")
	assert.ErrorContains(t, err, "s.txt:3: a has no client, and no line @ client stands above")
}

// TestLimitOfEachTest checks that the timeout applies to each test of a process.
func TestLimitOfEachTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := &process{ended: make(chan struct{}), last: start}
		go func() {
			for range 5 {
				time.Sleep(2 * time.Minute)
				_, _ = p.Write([]byte("pass\n"))
			}
		}()
		assert.EqualError(t, p.endOrSilence(t.Context(), 3*time.Minute), "it did not end in time")
		assert.Equal(t, 13*time.Minute, time.Since(start))
	})
}
