// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Both ends need the same options, for which perftest's exchange has no field. Two goverbs ends compare options after
// that exchange, and stop if they differ. With perftest as the peer, this end detects some differences from the
// exchange and the rest by timeout: see silence.go.

// task is the set of options that must agree. Two tasks are equal if their commands are.
type task struct {
	verb, connection           string
	latency, both, all         bool
	manager, global            bool
	size, qps, iterations, sec int
}

const taskBytes = 40

var verbs = []string{"send", "write", "read", "atomic"}
var connections = []string{"RC", "UC", "UD"}

// task returns the task of this end before any agreement; global reports whether it has a GID.
func (o *Options) task(global bool) task {
	return task{verb: o.Verb, connection: o.Connection, latency: o.Latency, both: o.Both, all: o.All,
		manager: o.Manager, global: global, size: o.Sizes[0], qps: o.QPs, iterations: o.Iterations,
		sec: int((o.Duration + time.Second - 1) / time.Second)}
}

// command returns the command line that runs the task on a server.
func (k task) command() string {
	words := []string{"goverbs perf", k.verb}
	add := func(is bool, word ...string) {
		if is {
			words = append(words, word...)
		}
	}
	add(k.latency, "--lat")
	add(k.both, "-b")
	add(k.connection != "RC", "-c", k.connection)
	add(k.manager, "-R")
	if k.all {
		add(true, "-a")
	} else {
		add(k.verb != "atomic", "-s", strconv.Itoa(k.size))
	}
	if k.sec > 0 {
		add(true, "-D", strconv.Itoa(k.sec))
	} else {
		add(true, "-n", strconv.Itoa(k.iterations))
	}
	add(k.qps != 1, "-q", strconv.Itoa(k.qps))
	return strings.Join(words, " ")
}

// perftest returns the equivalent perftest command line.
func (k task) perftest() string {
	kind := "bw"
	if k.latency {
		kind = "lat"
	}
	_, flags, _ := strings.Cut(strings.Replace(k.command(), " --lat", "", 1), k.verb)
	return "ib_" + k.verb + "_" + kind + flags
}

// put encodes a task.
func (k task) put() []byte {
	b := make([]byte, 0, taskBytes)
	b = append(b, nth(verbs, k.verb), nth(connections, k.connection), 0, 0)
	for i, is := range k.flags() {
		if *is {
			b[2] |= 1 << i
		}
	}
	b = binary.BigEndian.AppendUint32(b, uint32(k.qps))
	for _, n := range []int{k.size, k.iterations, k.sec} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return append(b, make([]byte, taskBytes-len(b))...)
}

func (k *task) flags() []*bool { return []*bool{&k.latency, &k.both, &k.all, &k.manager, &k.global} }

func nth(words []string, word string) byte {
	for i, w := range words {
		if w == word {
			return byte(i)
		}
	}
	return 0xff
}

// taskOf decodes a task.
func taskOf(b []byte) (k task, err error) {
	if int(b[0]) >= len(verbs) || int(b[1]) >= len(connections) {
		return k, fmt.Errorf("invalid test description from the peer: % x", b)
	}
	k.verb, k.connection = verbs[b[0]], connections[b[1]]
	for i, is := range k.flags() {
		*is = b[2]>>i&1 != 0
	}
	k.qps = int(binary.BigEndian.Uint32(b[4:]))
	for i, n := range []*int{&k.size, &k.iterations, &k.sec} {
		*n = int(binary.BigEndian.Uint64(b[8+8*i:]))
	}
	return k, nil
}

// errDiffer reports that the ends run different tests.
var errDiffer = errors.New("tests differ")

// compare exchanges the tasks of both ends and returns an error if they differ.
func compare(l link, client bool, local task) error {
	b := make([]byte, taskBytes)
	if err := swap(l, client, local.put(), b); err != nil {
		return fmt.Errorf("exchange of options: %w", err)
	}
	remote, err := taskOf(b)
	if err != nil {
		return err
	}
	if localCmd, remoteCmd := local.command(), remote.command(); localCmd != remoteCmd {
		return fmt.Errorf("%w: this end runs %q, the peer %q; use the same options on both ends", errDiffer, localCmd,
			remoteCmd)
	}
	if local.global != remote.global {
		return fmt.Errorf("%w: only one end has a GID; select a GID on both ends with -x", errDiffer)
	}
	return nil
}

// needs returns a hint about the peer's command.
func (k task) needs() string {
	return fmt.Sprintf("run %q or %q on the peer", k.command(), k.perftest())
}
