// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// suffix is the suffix of socket names.
const suffix = ".goverbs"

// sampling is the interval at which sources are read without a request, because their counters wrap at 2³².
const sampling = 10 * time.Second

// answerTime limits the time of sending an answer.
const answerTime = time.Second

// publish starts to serve reports.
func publish(dir string) error {
	listener, err := listen(dir)
	if err != nil {
		return err
	}
	go sample()
	go answer(listener, rand.Text(), time.Now())
	return nil
}

// fresh is the mode of a socket on which listen has not finished. Only such sockets have the sticky bit.
const fresh = unix.S_IFSOCK | unix.S_ISVTX | 0o600

// listen creates this program's socket in a directory. Users who can write to the directory can connect.
func listen(dir string) (*net.UnixListener, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("stat: %q: %w", dir, errors.Unwrap(err)) // without the PathError, whose name is not quoted
	}
	tidy(dir)
	name := filepath.Join(dir, fmt.Sprintf("%d-%s%s", os.Getpid(), strings.ToLower(rand.Text()[:8]), suffix))
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = os.NewSyscallError("fchmod", unix.Fchmod(int(fd), fresh)) })
		return errors.Join(err, failed)
	}}
	listener, err := config.Listen(context.Background(), "unix", name)
	if errno := unix.Errno(0); errors.As(err, &errno) { // without the name, which err does not quote
		err = fmt.Errorf("bind: %q: %w", name, errno)
	}
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("%w; socket names are limited to about 100 bytes", err)
	} else if err != nil {
		return nil, err
	}
	if err := open(name, uint32(info.Mode().Perm())&0o666|0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener.(*net.UnixListener), nil
}

// open sets the final mode of a fresh socket, regardless of the umask. Another user may have replaced the socket.
func open(name string, mode uint32) error {
	fd, info, err := find(name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if info.Uid != uint32(unix.Geteuid()) || info.Mode&^0o777 != fresh&^0o777 {
		return fmt.Errorf("chmod: %q: replaced by another socket", name)
	}
	return os.NewSyscallError("chmod", unix.Chmod(path(fd), mode))
}

// find opens a socket's file without following links and without connecting.
func find(name string) (fd int, info unix.Stat_t, err error) {
	fd, err = unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fd, info, fmt.Errorf("open: %q: %w", name, err)
	}
	if err = unix.Fstat(fd, &info); err == nil && info.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}
	if err != nil {
		unix.Close(fd)
		return fd, info, fmt.Errorf("open: %q: %w", name, err)
	}
	return fd, info, nil
}

// path returns a file name for a descriptor that find has opened.
func path(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// tidy removes the sockets of this user's programs that have ended.
func tidy(dir string) {
	all, _ := os.ReadDir(dir)
	for _, entry := range all {
		if name := filepath.Join(dir, entry.Name()); strings.HasSuffix(name, suffix) && ended(name) {
			os.Remove(name)
		}
	}
}

// ended reports whether a file is a socket of a program of this user that has ended.
func ended(name string) bool {
	fd, info, err := find(name)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if info.Uid != uint32(unix.Geteuid()) || info.Mode&unix.S_ISVTX != 0 { // a fresh socket does not accept connections yet
		return false
	}
	c, err := net.DialTimeout("unix", path(fd), answerTime)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

func sample() {
	for range time.Tick(sampling) {
		read()
	}
}

// answer serves connections one at a time.
func answer(listener *net.UnixListener, instance string, began time.Time) {
	for {
		c, err := listener.Accept()
		if err != nil {
			time.Sleep(answerTime) // for example, if too many files are open
			continue
		}
		r := read()
		r.Instance, r.Began = instance, began
		if text, err := json.Marshal(r); err == nil {
			_ = c.SetDeadline(time.Now().Add(answerTime))
			_, _ = c.Write(append(text, '\n'))
		}
		c.Close()
	}
}
