// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// stream is a TCP connection of the baseline, for one message size.
type stream struct {
	*baseline
	c       *net.TCPConn
	size    int
	message []byte
}

// measure runs the client, with the TCP equivalent of the verb.
func (t *stream) measure() (*Row, error) {
	switch {
	case t.Latency && t.Verb == "read":
		return t.roundTrips(t.message[:1], 1)
	case t.Latency && t.Verb == "atomic":
		return t.roundTrips(t.message, 1)
	case t.Latency:
		return t.roundTrips(t.message, 2)
	case t.Verb == "atomic" || t.Both:
		return t.bothDirections()
	case t.Verb == "read":
		return t.download()
	}
	return t.upload()
}

// serve runs the server.
func (t *stream) serve() error {
	switch {
	case t.Latency && t.Verb == "read":
		return t.answer(make([]byte, 1))
	case t.Latency:
		return t.answer(t.message)
	case t.Verb == "atomic":
		return t.echo()
	case t.Both:
		read := t.drain()
		return errors.Join(t.write(), t.c.CloseWrite(), (<-read).err)
	case t.Verb == "read":
		return errors.Join(t.write(), t.c.CloseWrite())
	}
	got := <-t.drain()
	if got.err != nil {
		return got.err
	}
	_, err := t.c.Write(binary.BigEndian.AppendUint64(nil, uint64(got.bytes)))
	return err
}

// over reports whether this number of messages is enough.
func (t *stream) over(sent int, since time.Time) bool {
	return t.Duration == 0 && sent == t.Iterations*t.QPs || time.Since(since) > t.limit()
}

// write writes messages until over.
func (t *stream) write() error {
	start := time.Now()
	for sent := 0; !t.over(sent, start); sent++ {
		if _, err := t.c.Write(t.message); err != nil {
			return err
		}
	}
	return nil
}

// drained reads until the end of the stream.
type drained struct {
	bytes int64
	err   error
}

func (t *stream) drain() chan drained {
	done := make(chan drained, 1)
	go func() {
		n, err := io.Copy(onlyWriter{io.Discard}, onlyReader{t.c})
		done <- drained{n, err}
	}()
	return done
}

// onlyReader and onlyWriter hide methods that would move data without copying it to this process.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// upload sends to the server, which returns the number of bytes received.
func (t *stream) upload() (*Row, error) {
	m := begin()
	if err := errors.Join(t.write(), t.c.CloseWrite()); err != nil {
		return nil, err
	}
	var got [8]byte
	if _, err := io.ReadFull(t.c, got[:]); err != nil {
		return nil, err
	}
	return m.bandwidth(t.size, int(binary.BigEndian.Uint64(got[:])/uint64(t.size))), nil
}

// download receives from the server.
func (t *stream) download() (*Row, error) {
	m := begin()
	got := <-t.drain()
	return m.bandwidth(t.size, int(got.bytes/int64(t.size))), got.err
}

// bothDirections sends and receives at the same time. For atomic operations, it receives answers.
func (t *stream) bothDirections() (*Row, error) {
	m := begin()
	read := t.drain()
	start := time.Now()
	sent := 0
	for ; !t.over(sent, start); sent++ {
		if _, err := t.c.Write(t.message); err != nil {
			return nil, err
		}
	}
	if err := t.c.CloseWrite(); err != nil {
		return nil, err
	}
	got := <-read
	messages := int(got.bytes / int64(t.size))
	if t.Both && t.Verb != "atomic" {
		messages += sent
	}
	return m.bandwidth(t.size, messages), got.err
}

// roundTrips sends messages one at a time and waits for each answer.
func (t *stream) roundTrips(request []byte, share int) (*Row, error) {
	m := begin()
	for n := 0; n == 0 || !(t.Duration == 0 && n == t.Iterations) && time.Since(m.start) < t.limit(); n++ {
		m.mark()
		if _, err := t.c.Write(request); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(t.c, t.message); err != nil {
			return nil, err
		}
	}
	m.mark()
	return m.latency(t.size, share), nil
}

// answer sends a message for each one received.
func (t *stream) answer(request []byte) error {
	for {
		if _, err := io.ReadFull(t.c, request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("incomplete message: %w", err)
		}
		if _, err := t.c.Write(t.message); err != nil {
			return err
		}
	}
}

// echo returns each message.
func (t *stream) echo() error {
	_, err := io.Copy(onlyWriter{t.c}, onlyReader{t.c})
	return errors.Join(err, t.c.CloseWrite())
}
