// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// TestPairFailsTogether checks that when a program fails in one guest, the other ends soon, although the first takes
// longer to power off, and that failures of both guests are reported. A script replaces QEMU.
func TestPairFailsTogether(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("FAKE_QEMU", dir)
	const script = `#!/bin/sh
case "$*" in *server=on*) host=0 ;; *) host=1 ;; esac
echo x >&3
[ $host = 1 ] || : >"$FAKE_QEMU/link"
echo $$ >"$FAKE_QEMU/process-$host"
. "$FAKE_QEMU/host-$host" >&4
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755))
	boot := func(host int, status int, then string) {
		text := ""
		for _, m := range []wire.Message{{Kind: wire.Boot}, {Kind: wire.Ready}, {Kind: wire.Start, Program: "p"},
			{Kind: wire.Exit, Program: "p", Status: status}} {
			line, err := json.Marshal(m)
			require.NoError(t, err)
			if m.Kind != wire.Exit || status != 0 {
				text += "echo '" + string(line) + "'\n"
			}
		}
		done, err := json.Marshal(wire.Message{Kind: wire.Done})
		require.NoError(t, err)
		text += then + "\necho '" + string(done) + "'\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "host-"+strconv.Itoa(host)), []byte(text), 0o644))
	}
	run := func() ([2]*Outcome, error) {
		var guests [2]*Guest
		for host := range guests {
			guests[host] = &Guest{Image: &Image{}, Host: host, Socket: filepath.Join(dir, "link"), Log: t.Logf,
				Timeout: time.Minute}
		}
		return runPair(t.Context(), guests, [2]string{}, false)
	}
	boot(0, 3, `sleep 4; kill -0 "$(cat "$FAKE_QEMU/process-1")" && : >"$FAKE_QEMU/late"`)
	boot(1, 0, "exec sleep 60")
	outcomes, err := run()
	require.NoError(t, err)
	assert.Equal(t, Exited, outcomes[0].Kind, "%s", outcomes[0])
	assert.Equal(t, Broken, outcomes[1].Kind, "%s", outcomes[1])
	assert.Contains(t, outcomes[1].Detail, "ended after the other guest")
	assert.NoFileExists(t, filepath.Join(dir, "late"), "the second guest still runs after 4 s")

	boot(1, 4, "sleep 2")
	outcomes, err = run()
	require.NoError(t, err)
	assert.Equal(t, Exited, outcomes[0].Kind, "%s", outcomes[0])
	assert.Equal(t, Exited, outcomes[1].Kind, "%s", outcomes[1])
}
