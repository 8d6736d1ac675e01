// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// note is a file that says that what has a digest has passed, as `go test` notes it. The empty one is never there.
type note string

func passedNote(dir, digest string) note {
	if dir == "" {
		return ""
	}
	return note(filepath.Join(dir, digest))
}

func (n note) exists() bool {
	if n == "" {
		return false
	}
	_, err := os.Stat(string(n))
	return err == nil
}

// write leaves the note when all outcomes are good ones. Without it, there is more to do the next time, and that is
// all.
func (n note) write(outcomes ...*Outcome) {
	if n == "" {
		return
	}
	for _, o := range outcomes {
		if o == nil || o.Kind != Passed {
			return
		}
	}
	if os.MkdirAll(filepath.Dir(string(n)), 0o755) == nil {
		os.WriteFile(string(n), nil, 0o644)
	}
}

// digest is of what a guest runs and is booted with: its files, which have a digest of their own, the kernel, the
// emulator, the command line.
func (g *Guest) digest(qemu, files string) (string, error) {
	all := sha256.New()
	io.WriteString(all, files)
	kernel, err := os.Open(g.Image.kernelFile())
	if err != nil {
		return "", err
	}
	defer kernel.Close()
	if _, err := io.Copy(all, kernel); err != nil {
		return "", err
	}
	emulator, err := os.Stat(qemu)
	if err != nil {
		return "", err
	}
	own := *g
	own.Socket = "" // a new one each time; the files say that there is another guest
	fmt.Fprintf(all, "%d %v %q", emulator.Size(), emulator.ModTime(), own.command("initrd"))
	return hex.EncodeToString(all.Sum(nil)), nil
}
