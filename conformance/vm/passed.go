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

// note is the path of a file whose existence records that an input with its digest has passed, like the test cache of
// go test. The empty note never exists.
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

// notes holds a note for each program of a guest, or of a pair that runs the same programs.
type notes []note

// write writes the notes of programs that have passed in all guests, unless a kernel or guest failed. Errors are
// ignored, since a missing note only means that the program runs again.
func (all notes) write(outcomes ...*Outcome) {
	for n, note := range all {
		if note != "" && !slices.ContainsFunc(outcomes, func(o *Outcome) bool { return !o.passed(n) }) &&
			os.MkdirAll(filepath.Dir(string(note)), 0o755) == nil {
			os.WriteFile(string(note), nil, 0o644)
		}
	}
}

// passed reports whether the nth program passed.
func (o *Outcome) passed(n int) bool {
	return o != nil && (o.Kind == Passed || o.Kind == Exited) && n < len(o.Results) && o.Results[n].Status == 0 &&
		!o.Results[n].TimedOut
}

// notPassed returns the programs of a guest, or of a pair that runs the same programs, that have not passed yet, and
// the
// notes to write for them. The digest of a program covers everything in a guest that runs only this program.
func notPassed(initProgram string, guests ...*Guest) (rest []Program, left notes, err error) {
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
			first.Log.printf("%s: passed before, unchanged since", p.Name)
			continue
		}
		rest, left = append(rest, p), append(left, note)
	}
	return rest, left, nil
}

// digest returns the digest of a guest's inputs: its files, the kernel, the emulator and the command line.
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
	copied := *g
	copied.Socket = "" // changes with each run; the configuration records that there is a pair
	fmt.Fprintf(all, "%d %v %q", info.Size(), info.ModTime(), copied.command("initrd"))
	return hex.EncodeToString(all.Sum(nil)), nil
}
