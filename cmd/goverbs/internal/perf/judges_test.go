// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// judged skips a test that needs programs of others, which are large.
func judged(t *testing.T) {
	if os.Getenv("GOVERBS_JUDGES") == "" {
		t.Skip("needs Chromium and HdrHistogram for Java: make check-perf")
	}
}

// TestChromium: a browser without network draws the page: its elements are there, and its curves have their colour.
func TestChromium(t *testing.T) {
	judged(t)
	dir := t.TempDir()
	for name, test := range map[string]Options{
		"latency":   {Verb: "send", Latency: true, Iterations: 2000, TCP: true},
		"bandwidth": {Verb: "write", All: true, Iterations: 10},
	} {
		server, client := endsOf(t, test, "")
		_, report := measured(t, server, client)
		page, picture := filepath.Join(dir, name+".html"), filepath.Join(dir, name+".png")
		require.NoError(t, report.SaveWebPage(page))
		browse := func(args ...string) string {
			args = append(args, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=960,1600",
				"--force-color-profile=srgb", "--user-data-dir="+filepath.Join(dir, "profile"),
				"--host-resolver-rules=MAP * ~NOTFOUND", "file://"+page)
			cmd := exec.CommandContext(t.Context(), "chromium", args...)
			cmd.WaitDelay = time.Second
			out, err := cmd.Output()
			require.NoError(t, err)
			return string(out)
		}
		text := browse("--dump-dom")
		assert.Equal(t, 2, strings.Count(text, "<svg"), name)
		assert.Contains(t, text, "</html>")
		browse("--hide-scrollbars", "--screenshot="+picture)
		assert.Greater(t, coloured(t, picture), 500, "%s: points of the first curve", name)
	}
}

// coloured counts the points of a picture that have the colour of the first curve.
func coloured(t *testing.T, file string) (n int) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	picture, err := png.Decode(f)
	require.NoError(t, err)
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			if r, g, b, _ := picture.At(x, y).RGBA(); r>>8 == 0x25 && g>>8 == 0x63 && b>>8 == 0xeb {
				n++
			}
		}
	}
	return n
}

// TestReferenceHistograms: the first implementation of HdrHistogram, in Java, reads the log, and finds what was
// measured.
func TestReferenceHistograms(t *testing.T) {
	judged(t)
	server, client := endsOf(t, Options{Verb: "send", Latency: true, Iterations: 500}, "64")
	_, report := measured(t, server, client)
	log := filepath.Join(t.TempDir(), "a.hlog")
	require.NoError(t, report.SaveHistograms(log))
	out, err := exec.Command("java", "-cp", "/usr/share/java/hdrhistogram.jar",
		"org.HdrHistogram.HistogramLogProcessor", "-i", log,
		"-tag", "64-bytes", "-outputValueUnitRatio", "1000").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Regexp(t, `(?m)^ +[0-9.]+ 1\.000000000000 +499\b`, string(out))
	assert.Regexp(t, `#\[Max +=`, strings.ReplaceAll(string(out), "\t", " "))
}
