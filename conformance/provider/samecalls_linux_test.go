// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Constants of testdata/calls.c.
const (
	callsAt                                      = 1 << 45
	callsSize                                    = 1 << 14
	callsKey, callsDepth, callsSGEs, callsInline = 7, 32, 2, 32
	callsSteps, callsLive                        = 40, 200
)

// TestSameCalls checks that a C program and a Go program that make the same calls issue identical commands to the
// kernel, leave identical queues and doorbells, and read identical completions.
func TestSameCalls(t *testing.T) {
	if kind := os.Getenv(envInside); kind != "" {
		insideCalls(t, kind)
		return
	}
	seeds := 3
	if os.Getenv(envAll) != "" {
		seeds = 30
	}
	sameCalls(t, emulated(t), seeds)
}

// sameCalls compares the programs for a number of seeds: a third as many for mlx4 and erdma, and a tenth for idle
// adapters.
func sameCalls(t *testing.T, e *Emulated, seeds int) {
	t.Helper()
	c := callers{t: t, e: e, c: compile(t, e, "calls"), tags: compile(t, e, "tags"), goProgram: testProgram(t, e, ".")}
	for _, run := range []struct {
		kind string
		on   Adapter
		part int
	}{{"rc", MLX5, 1}, {"xrc", MLX5, 3}, {"rc", MLX4, 3}, {"rc", ERDMA, 3}, {"ud", EFA, 1}, {"srd", EFA, 1}, {ofTags, MLX5, 1}} {
		for range seeds / run.part {
			c.compare(run.on, run.kind, "")
			c.compare(run.on, run.kind, "live")
		}
	}
	for _, a := range idle {
		for range seeds / 10 {
			if e.libraries.Release >= a.since {
				c.compare(a.Adapter, "rc", "")
			}
		}
	}
}

// callers holds the paths of the C programs and of the Go program.
type callers struct {
	t                  *testing.T
	e                  *Emulated
	c, tags, goProgram string
}

func (c *callers) compare(adapter Adapter, kind, live string) {
	c.t.Helper()
	seed := strconv.FormatUint(uint64(rand.Uint32()), 10)
	program, link := c.c, ""
	if kind == ofTags {
		program, link = c.tags, envInfiniBand
	}
	texts := [2][2]string{}
	for i, words := range [][]string{{program, kind, seed, live}, {c.goProgram, "-test.run=^TestSameCalls$"}} {
		record, results := filepath.Join(dir, "record"), filepath.Join(dir, "results")
		if live == "" {
			words = words[:min(len(words), 3)]
		}
		cmd := c.e.As(adapter).Command(c.t.Context(), words[0], words[1:]...)
		cmd.Env = append(cmd.Env, "GOVERBS_RECORD="+record, envInside+"="+kind, envSeed+"="+seed,
			envLive+"="+live, envResults+"="+results, link,
			"MALLOC_PERTURB_=255") // providers do not write all bytes of their queues; malloc now clears them
		if live == "" {
			cmd.Env = append(cmd.Env, "GOVERBS_EMULATED_STILL=1")
		}
		out, err := cmd.CombinedOutput()
		require.NoError(c.t, err, "%s: %s", adapter.Name, out)
		texts[i][0] = written(adapter, c.e.libraries.Release, read(c.t, record))
		if texts[i][1] = string(out); i == 1 {
			texts[i][1] = read(c.t, results)
		}
	}
	for j, name := range []string{"commands and queues", "results of the calls"} {
		require.Equal(c.t, texts[0][j], texts[1][j], "%s, %s, seed %s: %s, by C and by Go", adapter.Name, kind,
			seed, name)
	}
	assert.Greater(c.t, strings.Count(texts[0][0], "command"), 10)
	assert.Greater(c.t, strings.Count(texts[0][1], "\n"), 30)
	assert.Regexp(c.t, "queue pair 25[678]\n", texts[0][0])
}

// notWritten lists words of commands that a provider passes to the kernel uninitialized: for regions, the number of
// pages of queues; a mask; attributes that are not in the mask.
var notWritten = []struct {
	provider, before string // first release that initializes them, if any
	words            *regexp.Regexp
}{
	{"irdma", "", regexp.MustCompile("driver, 8 bytes:.*")},
	{"bnxt_re", "65.0", regexp.MustCompile("driver, 40 bytes:.*")},
	{"hns", "56.1", regexp.MustCompile("core, 112 bytes:.*")},
}

func written(a Adapter, release, record string) string {
	for _, n := range notWritten {
		if n.provider == a.Name && (n.before == "" || release < n.before) {
			record = n.words.ReplaceAllString(record, "words")
		}
	}
	return record
}

// Arguments of the Go program.
const (
	ofTags     = "tags" // runs testdata/tags.c
	envSeed    = "GOVERBS_CALLS_SEED"
	envLive    = "GOVERBS_CALLS_LIVE"
	envResults = "GOVERBS_CALLS_RESULTS"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

func insideCalls(t *testing.T, kind string) {
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 32)
	require.NoError(t, err)
	out, err := os.Create(os.Getenv(envResults))
	keep(t, out, err)
	if kind == ofTags {
		insideTagCalls(t, out, uint32(seed), os.Getenv(envLive) != "")
		return
	}
	c := &caller{t: t, out: out, state: uint32(seed), kind: kind, rc: kind == "rc" || kind == "xrc", srd: kind == "srd"}
	c.open()
	if os.Getenv(envLive) != "" {
		for i := range callsLive {
			c.below(3)
			c.live(i)
		}
	} else {
		for i := range callsSteps {
			kind, n := c.below(4), int(1+c.below(3))
			switch {
			case kind == 0:
				c.receive(i, n)
			case c.srd && kind < 3:
				c.calls(i, n)
			default:
				c.send(i, n)
			}
		}
	}
	c.close()
}
