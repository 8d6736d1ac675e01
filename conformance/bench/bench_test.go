// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestResults checks that the committed results have all rows, with consistent numbers.
func TestResults(t *testing.T) {
	impls := []string{"c", "go-default", "go-default-checked", "cgo", "purego"}
	for file, want := range map[string]map[string][]string{
		"post.csv": {"call": {"1", "4", "16", "64"}, "build+post": {"1", "4", "16", "64"},
			"patch+post": {"1", "4", "16", "64"}},
		"poll.csv": {"poll": {"0", "1", "16"}},
	} {
		f, err := os.Open(filepath.Join("results", file))
		require.NoError(t, err)
		defer f.Close()
		rows, err := csv.NewReader(f).ReadAll()
		require.NoError(t, err)
		assert.Equal(t, []string{"case", "batch", "impl", "min_ns", "median_ns", "ratio_to_c"}, rows[0], file)
		mins := map[[3]string]float64{}
		for _, r := range rows[1:] {
			key := [3]string(r[:3])
			assert.NotContains(t, mins, key, "%s: twice", file)
			mins[key] = parse(t, r[3])
			assert.Positive(t, mins[key], "%s: %v", file, r)
			assert.LessOrEqual(t, mins[key], parse(t, r[4]), "%s: %v: a minimum above the median", file, r)
		}
		expected := 0
		for name, batches := range want {
			for _, batch := range batches {
				for _, impl := range impls {
					expected++
					assert.Contains(t, mins, [3]string{name, batch, impl}, file)
				}
			}
		}
		assert.Len(t, mins, expected, file)
		for _, r := range rows[1:] {
			c := mins[[3]string{r[0], r[1], "c"}]
			assert.InEpsilon(t, parse(t, r[3])/c, parse(t, r[5]), 0.02,
				"%s: %v: the ratio of its minimum to C's, which is %v", file, r, c)
		}
	}
}

func parse(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err)
	return v
}

// TestChart checks that the committed chart is well-formed XML and names the implementations.
func TestChart(t *testing.T) {
	text, err := os.ReadFile("results/post.svg")
	require.NoError(t, err)
	d := xml.NewDecoder(strings.NewReader(string(text)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
	for _, impl := range implementations {
		assert.Contains(t, string(text), ">"+impl.name+"<")
	}
}

// TestSameBytes checks that every implementation posts the same bytes as C.
func TestSameBytes(t *testing.T) {
	require.NoError(t, sameBytes(openStub(stubCapture, 1)))
}

// TestSameBytesCanFail checks that a difference in one number is detected and reported.
func TestSameBytesCanFail(t *testing.T) {
	s := openStub(stubCapture, 1)
	defer func(w work) { theWork = w }(theWork)
	want := capturedBy(t, s)
	theWork.rkey++
	got := capturedBy(t, s)
	assert.NotEqual(t, want, got)
	assert.Equal(t, "byte 48 of work request 0 is 0x79, not 0x78", firstDifference(got, want))
}

func capturedBy(t *testing.T, s *stub) []byte {
	t.Helper()
	sample, err := prepareDefault(cell{stubCapture, 1, 1, caseBuild, 4}, s)
	require.NoError(t, err)
	_, err = sample(1)
	require.NoError(t, err)
	return captured()
}

// TestNoAllocations checks that posting and polling do not allocate, with each way to call, checked or not.
func TestNoAllocations(t *testing.T) {
	s := openStub(stubReturn, 1)
	for _, impl := range []implementation{{implDefault, prepareDefault}, {implChecked, prepareChecked}} {
		for _, name := range []string{caseCall, caseBuild, casePatch, casePoll} {
			for _, batch := range []int{1, 16, 64} {
				c := cell{stubReturn, 1, 1, name, batch}
				sample, err := impl.prepare(c, s)
				require.NoError(t, err)
				assert.Zero(t, testing.AllocsPerRun(10, func() {
					_, err = sample(100)
				}), "%s: %v", impl.name, c)
				require.NoError(t, err)
			}
		}
	}
}

// TestCallPathForced checks that the default way is measured as such, although the provider of the stub is unknown and
// would be called as blocking.
func TestCallPathForced(t *testing.T) {
	s, c := openStub(stubReturn, 1), plain(caseCall, 1)
	q, err := rdma.NewSendQueue(s.qps(1)[0], options(c, false))
	require.NoError(t, err)
	assert.Equal(t, "system", q.Way().String())
	cq, err := rdma.NewCompletionQueue(s.cq(1), options(c, false))
	require.NoError(t, err)
	assert.Equal(t, "system", cq.Way().String())
	n, err := cq.Poll(make([]ibv.WC, 4))
	require.NoError(t, err)
	assert.Equal(t, 1, n)
}
