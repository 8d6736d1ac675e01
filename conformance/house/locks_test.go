// SPDX-License-Identifier: BSD-2-Clause

package house

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// annotated are the packages with +checklocks annotations. Others describe their locking in prose, because the checker
// does not follow a lock that another object or a wrapper acquires, like the fabric's.
var annotated = []string{"./rdma/internal/counted", "./rdma/internal/life", "./rdma/internal/mapped",
	"./rdma/internal/readiness", "./rdma/internal/trace", "./rdma/registration", "./rdma/registration/internal/watch",
	"./rdma/soft", "./rdma/soft/internal/pcap", "./internal/nap", "./internal/places", "./internal/stats", "./rpma"}

// TestLocks runs gVisor's checklocks on the annotated packages, and on one with a missing lock.
func TestLocks(t *testing.T) {
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("takes a minute of processor time with a cold cache, and the race detector finds most missing locks; " +
			"GOVERBS_EVERYTHING=1 runs it")
	}
	checker := filepath.Join(t.TempDir(), "checklocks")
	build := exec.Command("go", "build", "-o", checker, "gvisor.dev/gvisor/tools/checklocks/cmd/checklocks")
	build.Dir = "tools"
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("checklocks cannot be built (.ci/modules conformance/house/tools downloads it): %s", out)
	}
	check := func(arg ...string) (string, error) {
		vet := exec.Command("go", append([]string{"vet", "-vettool=" + checker, "-inferred=false", "-atomic=false",
			"-wrappers=false"}, arg...)...)
		vet.Dir, vet.Env = "../..", append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
		out, err := vet.CombinedOutput()
		return string(out), err
	}
	out, err := check(annotated...)
	assert.NoError(t, err, "%s", out)

	file, err := filepath.Abs("../../rdma/internal/life/life.go")
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	const locked = "\tl.mu.Lock()\n\tdefer l.mu.Unlock()\n\treturn len(l.needed)\n"
	require.Contains(t, string(text), locked)
	seeded := filepath.Join(t.TempDir(), "life.go")
	unlocked := strings.Replace(string(text), locked, "\treturn len(l.needed)\n", 1)
	require.NoError(t, os.WriteFile(seeded, []byte(unlocked), 0o644))
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: seeded}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o644))
	out, err = check("-overlay="+overlay, "./rdma/internal/life")
	assert.Error(t, err)
	assert.Contains(t, out, "must be locked when accessing needed")
}
