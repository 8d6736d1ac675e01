// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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

// notes are those of the programs of a guest, or of two guests that run the same, in their order.
type notes []note

// write leaves the notes of programs that have passed in all guests, unless the kernel or a guest was in trouble.
// Without one, there is more to do the next time, and that is all.
func (all notes) write(outcomes ...*Outcome) {
	for n, note := range all {
		if note != "" && !slices.ContainsFunc(outcomes, func(o *Outcome) bool { return !o.passed(n) }) &&
			os.MkdirAll(filepath.Dir(string(note)), 0o755) == nil {
			os.WriteFile(string(note), nil, 0o644)
		}
	}
}

// passed says whether the nth program has.
func (o *Outcome) passed(n int) bool {
	return o != nil && (o.Kind == Passed || o.Kind == Exited) && n < len(o.Results) && o.Results[n].Status == 0 &&
		!o.Results[n].TimedOut
}

// undone are the programs of a guest, or of two that run the same, that are not known to have passed, with the notes to
// leave of them. A program counts with all that a guest has that runs it alone.
func undone(initProgram string, guests ...*Guest) (rest []Program, left notes, err error) {
	first := guests[0]
	if first.Passed == "" {
		return first.Programs, nil, nil
	}
	for n, p := range first.Programs {
		digests := sha256.New()
		for _, g := range guests {
			alone := *g
			alone.Programs = g.Programs[n : n+1]
			digest, err := alone.digest(initProgram)
			if err != nil {
				return nil, nil, err
			}
			io.WriteString(digests, digest)
		}
		note := passedNote(first.Passed, hex.EncodeToString(digests.Sum(nil)))
		if note.exists() {
			first.Log.printf("%s: passed before, and nothing of it has changed", p.Name)
			continue
		}
		rest, left = append(rest, p), append(left, note)
	}
	return rest, left, nil
}

// digest is of what a guest runs and is booted with: its files, which have a digest of their own, the kernel, the
// emulator, the command line.
func (g *Guest) digest(initProgram string) (string, error) {
	qemu, err := emulator()
	if err != nil {
		return "", err
	}
	_, files, err := g.Image.initramfs(initProgram, g.config(), g.Programs, g.Files)
	if err != nil {
		return "", err
	}
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
	info, err := os.Stat(qemu)
	if err != nil {
		return "", err
	}
	own := *g
	own.Socket = "" // a new one each time; the files say that there is another guest
	fmt.Fprintf(all, "%d %v %q", info.Size(), info.ModTime(), own.command("initrd"))
	return hex.EncodeToString(all.Sum(nil)), nil
}
