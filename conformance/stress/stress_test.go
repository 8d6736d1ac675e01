// SPDX-License-Identifier: BSD-2-Clause

package stress

import (
	"context"
	"os"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bodies of package runtime and of rdma's queues, in groups that run one after the other.
var bodies = []string{"queue,blocking,programs",
	"sends,sends-unchecked,sends-programs"}

const (
	leastPeriod = 500 * time.Millisecond
	allStorms   = "stop,collect,urg,prof,profile,trace"
)

// period returns the duration of one run of the worker. STRESS is the total duration, by default about 40 seconds.
func period(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("STRESS")
	if s == "" {
		return leastPeriod
	}
	all, err := time.ParseDuration(s)
	require.NoError(t, err, "STRESS")
	return max(all/80, leastPeriod)
}

// run runs a worker and fails the test unless it succeeds in time.
func run(t *testing.T, env []string, words ...string) string {
	t.Helper()
	out, err := command(t, 2*period(t)+30*time.Second, env, words[0], append(words[1:], "-for="+period(t).String())...)
	require.NoError(t, err, "%v %v\n%s", env, words, out)
	require.Regexp(t, `(?m)^ok: `, out)
	return regexp.MustCompile(`(?m)^ok: .*`).FindString(out)
}

func needFast(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" {
		t.Skip("takes a minute; GOVERBS_LONG=1, which make test sets, runs it")
	}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("the ways without the scheduler are for amd64 and arm64; the tests of package runtime cover the " +
			"slow way")
	}
}

// TestStorms checks in each build of the worker and under all storms that every post arrives once and intact, that no
// checked queue overflows or loses a slot, and that C locks are held by one program at a time.
func TestStorms(t *testing.T) {
	needFast(t)
	library := queueLibrary(t, "gcc")
	for _, b := range builds {
		t.Run(b.name, func(t *testing.T) {
			needEverything(t, b.rare)
			storms(t, b.worker(t), "-library="+library)
		})
	}
}

// storms runs a worker with all bodies under all storms.
func storms(t *testing.T, words ...string) {
	t.Helper()
	for _, env := range [][]string{
		{"GOGC=1", "GOMAXPROCS=2"},
		{"GOGC=1", "GOMAXPROCS=1"},
		{"GOGC=1", "GOMAXPROCS=2", "GODEBUG=asyncpreemptoff=1"},
		{"GOGC=100", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1"},
	} {
		for _, group := range bodies {
			t.Log(env, run(t, env, append(slices.Clone(words), "-bodies="+group, "-storms="+allStorms)...))
		}
	}
}

// TestRegionsAreOneProgram checks that a program may hold a C lock. If separate calls held it, the process would
// deadlock when Go preempts the holder, which the test demonstrates.
func TestRegionsAreOneProgram(t *testing.T) {
	needFast(t)
	worker, library := builds[0].worker(t), queueLibrary(t, "gcc")
	for _, env := range [][]string{{"GOMAXPROCS=1"}, {"GOMAXPROCS=2"}} {
		t.Log(env, run(t, env, worker, "-library="+library, "-bodies=programs", "-storms=stop"))
	}
	out, err := command(t, 4*time.Second, []string{"GOMAXPROCS=1"}, worker, "-library="+library, "-bodies=separate",
		"-storms=stop", "-for=2s")
	assert.ErrorIs(t, err, context.DeadlineExceeded, "separate calls did not deadlock, so the test proves nothing\n%s",
		out)
}

var p99 = regexp.MustCompile(`stop-p99=(\S+) .*own-p99=(\S+) own-max=([^;\s]+)`)

// TestStopTheWorld checks that stop-the-world pauses have a p99 below 5 ms while a goroutine polls in a tight loop,
// minus the time in which a thread of the process was runnable without a CPU: on an overloaded machine that is about 4
// ms. A Go loop that cannot be preempted shows that the remaining time still counts; there, only the wait of one thread
// is subtracted, because the sum over several can exceed the pause.
func TestStopTheWorld(t *testing.T) {
	needFast(t)
	worker, library := builds[0].worker(t), queueLibrary(t, "gcc")
	measure := func(body string, env ...string) (cpuTime, most time.Duration) {
		env = append(env, "GOMAXPROCS=2")
		found := p99.FindStringSubmatch(run(t, env, worker, "-library="+library, "-bodies="+body, "-storms=stop"))
		require.NotNil(t, found)
		cpuTime, err := time.ParseDuration(found[2])
		require.NoError(t, err)
		most, err = time.ParseDuration(found[3])
		require.NoError(t, err)
		t.Logf("%v %s: p99 %s; without waiting for a CPU %v, at most %v", env, body, found[1], cpuTime, most)
		return cpuTime, most
	}
	const limit = 5 * time.Millisecond
	for _, env := range [][]string{nil, {"GODEBUG=asyncpreemptoff=1"}} {
		own, _ := measure("spin-system", env...)
		assert.Less(t, own, limit)
	}
	most := time.Duration(0)
	for range 20 { // on a busy machine it may lose its CPU during the pause
		if _, most = measure("spin-go", "GODEBUG=asyncpreemptoff=1"); most > limit {
			break
		}
	}
	assert.Greater(t, most, limit, "nothing can stop this one: the test shows nothing")
}
