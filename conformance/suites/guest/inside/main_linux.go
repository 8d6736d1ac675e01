// SPDX-License-Identifier: BSD-2-Clause

// Command inside runs suites in a guest, on its kernel device. The programs are in a separate root file system. It
// writes events as lines, see guest.Event; other lines are for readers.
//
// Usage: inside SUITE REGEXP [CASE TO LEAVE OUT]...
package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/suites"
	"github.com/goverbs/goverbs/conformance/suites/guest"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

func run(name, pattern string, without []string) error {
	only, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	if err := enter("/tmp/root"); err != nil {
		return err
	}
	s, err := suites.Read(name)
	if err != nil {
		return err
	}
	device, address := os.Getenv("GOVERBS_DEVICE"), os.Getenv("GOVERBS_ADDRESS")
	gid, err := indexOf(device, address)
	if err != nil {
		return err
	}
	r := &suites.Runner{
		Kernel: &suites.Kernel{Device: device, Address: address, GID: gid, Slower: guest.Slower},
		Begins: func(name string) { guest.Event{Begins: name}.Write(os.Stdout) },
		Ended:  func(result suites.Result) { guest.Event{Result: &result}.Write(os.Stdout) },
		Log:    func(format string, args ...any) { fmt.Printf(format+"\n", args...) },
	}
	_, err = r.All(context.Background(), s, func(name string) bool {
		return s.On(os.Getenv("GOVERBS_GUEST"), name) && only.MatchString(name) &&
			!slices.Contains(without, name)
	})
	if err == nil {
		guest.Event{Done: true}.Write(os.Stdout)
	}
	return err
}

// enter unpacks guest.RootFile into a directory and makes it the root.
func enter(root string) error {
	from, err := os.Open(guest.RootFile)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := unpack(from, root); err != nil {
		return fmt.Errorf("%s: %w", guest.RootFile, err)
	}
	if err := os.Remove(guest.RootFile); err != nil { // frees its memory
		return err
	}
	for _, dir := range []string{"proc", "sys", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o777); err != nil {
			return err
		}
		if dir == "tmp" {
			continue
		}
		if err := unix.Mount("/"+dir, filepath.Join(root, dir), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	return errors.Join(os.Chdir("/"), os.Setenv("PATH", "/usr/sbin:/usr/bin"),
		os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost\n"), 0o644))
}

func unpack(from io.Reader, root string) error {
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		name := filepath.Join(root, header.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if header.Typeflag == tar.TypeSymlink {
			err = os.Symlink(header.Linkname, name)
		} else {
			err = write(name, header.FileInfo().Mode(), r)
		}
		if err != nil {
			return err
		}
	}
}

func write(name string, mode os.FileMode, from io.Reader) error {
	to, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// indexOf returns the index of the RoCE v2 GID for an IPv4 address.
func indexOf(device, address string) (string, error) {
	port := "/sys/class/infiniband/" + device + "/ports/1/"
	var a [4]byte
	if n, err := fmt.Sscanf(address, "%d.%d.%d.%d", &a[0], &a[1], &a[2], &a[3]); n != 4 {
		return "", fmt.Errorf("address %q: %w", address, err)
	}
	want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", a[0], a[1], a[2], a[3])
	for i := range 256 {
		index := strconv.Itoa(i)
		gid, err := os.ReadFile(port + "gids/" + index)
		if err != nil {
			break
		}
		kind, _ := os.ReadFile(port + "gid_attrs/types/" + index)
		if strings.TrimSpace(string(gid)) == want && strings.Contains(string(kind), "v2") {
			return index, nil
		}
	}
	return "", fmt.Errorf("%s has no GID %s of RoCE v2", device, want)
}
