// SPDX-License-Identifier: BSD-2-Clause

package stats

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/internal/rights"
)

// suffix ends the names of sockets.
const suffix = ".goverbs"

// Sampling is how often sources are asked although nobody wants to know: they count modulo 2³².
const sampling = 10 * time.Second

// answerTime is how long one who asks may take to read.
const answerTime = time.Second

// directory is that of the variable, or "".
var directory = sync.OnceValue(func() string { return rights.Getenv(Variable) })

// On says whether the program publishes what it counts.
func On() bool { return directory() != "" }

var sources struct {
	begin sync.Once
	mu    sync.Mutex // guards what follows
	all   []func(*Report)
}

// Add adds a source, which is asked for its part of each report by one goroutine at a time. It does nothing where
// nothing is published. A directory that cannot be used is said once: the program is not to fail of it.
func Add(source func(*Report)) {
	if !On() {
		return
	}
	sources.mu.Lock()
	sources.all = append(sources.all, source)
	sources.mu.Unlock()
	sources.begin.Do(func() {
		if err := publish(directory()); err != nil {
			fmt.Fprintf(os.Stderr, "goverbs: %s: nothing is published: %v\n", Variable, err)
		}
	})
}

// read asks all sources.
func read() *Report {
	r := &Report{Format: Format, Devices: []Device{}}
	sources.mu.Lock()
	defer sources.mu.Unlock()
	for _, source := range sources.all {
		source(r)
	}
	return r
}

// publish begins to answer.
func publish(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	tidy(dir)
	name := filepath.Join(dir, fmt.Sprintf("%d-%s%s", os.Getpid(), strings.ToLower(rand.Text()[:8]), suffix))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("%w: names of sockets have at most 100 bytes or so", err)
	} else if err != nil {
		return err
	}
	// Users who may add to the directory may ask, too.
	if err := os.Chmod(name, info.Mode().Perm()&0o666|0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	go sample()
	go answer(listener, rand.Text(), time.Now())
	return nil
}

// tidy removes sockets of this user's programs that ended.
func tidy(dir string) {
	all, _ := filepath.Glob(filepath.Join(dir, "*"+suffix))
	for _, name := range all {
		if info, err := os.Lstat(name); err != nil || info.Mode().Type() != os.ModeSocket {
			continue
		}
		c, err := net.DialTimeout("unix", name, answerTime)
		if err == nil {
			c.Close()
		} else if errors.Is(err, refused) {
			os.Remove(name) // of another user, in a directory with the sticky bit, this fails
		}
	}
}

func sample() {
	for range time.Tick(sampling) {
		read()
	}
}

// answer answers one connection after the other.
func answer(listener *net.UnixListener, instance string, began time.Time) {
	for {
		c, err := listener.Accept()
		if err != nil {
			time.Sleep(answerTime) // too many files are open, for example
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
