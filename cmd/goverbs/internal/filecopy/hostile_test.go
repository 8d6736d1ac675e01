// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rpma"
)

// startReceiver starts a receiver and returns its address and its result. It sends the reasons of refusals to refused,
// which may be nil.
func startReceiver(t *testing.T, name string, refused chan<- error) (address string, end <-chan error) {
	at, done := make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := Receive(t.Context(), "127.0.0.1:0", name, 1<<30, func(address string) { at <- address },
			func(reason error) {
				if refused != nil {
					refused <- reason
				}
			})
		done <- err
	}()
	select {
	case address := <-at:
		return address, done
	case err := <-done:
		require.Fail(t, "the receiver stopped", err)
		return "", nil
	}
}

// file creates a file.
func file(t *testing.T, text string) *os.File {
	name := filepath.Join(t.TempDir(), "from")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// offerText returns a sender that has offered a text.
func offerText(t *testing.T, o *opened, address, text string) *sender {
	s, err := o.dial(t.Context(), address, offer{uint64(len(text)), sha256.Sum256([]byte(text))})
	require.NoError(t, err)
	return s
}

func nothing(done, of uint64) {}

// TestSenderWritesOn checks that writes during the comparison do not change the stored file.
func TestSenderWritesOn(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	to, want := filepath.Join(t.TempDir(), "to"), strings.Repeat("right", 4<<20)
	address, received := startReceiver(t, to, nil)
	var open opened
	defer func() { assert.NoError(t, open.Close()) }()
	s := offerText(t, &open, address, want)
	remote, err := s.confirm(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.writeAll(t.Context(), remote, file(t, want), nothing))
	_, err = s.async.Recv(nil, 0, 0)
	require.NoError(t, err)
	_, err = s.async.SendWithImm(nil, 0, 0, arrived)
	require.NoError(t, err)
	for range 5 { // until the connection fails
		time.Sleep(3 * time.Millisecond)
		_, _ = s.async.Write(remote, 0, s.memory, longestAnswer+1, 1)
	}
	failed := <-received
	have, err := os.ReadFile(to)
	if failed != nil && errors.Is(err, os.ErrNotExist) {
		return // a write arrived before the comparison
	}
	require.NoError(t, err)
	assert.True(t, want == string(have), "%v", failed)
}

// TestUnknownAnswer checks that an unknown answer is an error.
func TestUnknownAnswer(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	for _, first := range []string{"", "hello", acceptance} {
		var open opened
		defer func() { assert.NoError(t, open.Close()) }()
		peer, err := open.open(t.Context(), rpma.Local, "127.0.0.1:0")
		require.NoError(t, err)
		memory, err := peer.RegMR(make([]byte, longestAnswer), rpma.SendSrc)
		require.NoError(t, err)
		open.add(memory)
		endpoint, err := peer.Listen(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		open.add(endpoint)
		done := make(chan error, 1)
		from := file(t, "").Name()
		go func() {
			_, err := Send(t.Context(), from, endpoint.Addr().String(), nothing)
			done <- err
		}()
		request, err := endpoint.NextConnRequest(t.Context(), config)
		require.NoError(t, err)
		require.NoError(t, request.Recv(nil, 0, 0, received))
		conn, err := request.Connect(nil)
		require.NoError(t, err)
		open.add(conn)
		r := &receiver{conn: conn}
		require.NoError(t, r.confirmed(t.Context()))
		require.NoError(t, conn.Recv(nil, 0, 0, received))
		copy(memory.Bytes(), first)
		require.NoError(t, conn.Send(memory, 0, uint64(len(first)), rpma.OnError, sent))
		if first != acceptance {
			assert.ErrorContains(t, <-done, "peer is not goverbs cp --listen")
			continue
		}
		require.NoError(t, r.await(t.Context(), received))
		require.NoError(t, conn.SendWithImm(nil, 0, 0, rpma.Always, 7, sent))
		assert.ErrorContains(t, <-done, "unknown answer 7")
	}
}

// TestSenderGone checks that a receiver detects a killed sender.
func TestSenderGone(t *testing.T) {
	defer func(d time.Duration) { probeInterval = d }(probeInterval)
	probeInterval = 50 * time.Millisecond
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir := t.TempDir()
	address, received := startReceiver(t, filepath.Join(dir, "to"), nil)
	var open opened
	s := offerText(t, &open, address, "right")
	_, err := s.confirm(t.Context())
	require.NoError(t, err)
	time.Sleep(5 * probeInterval)
	select {
	case err := <-received:
		require.Fail(t, "a silent sender is still connected", err)
	default:
	}
	require.NoError(t, open.Close())
	assert.ErrorContains(t, <-received, "connection to the sender lost")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestReceiverGone checks that a sender waiting for an answer detects a killed receiver.
func TestReceiverGone(t *testing.T) {
	defer func(d time.Duration) { probeInterval = d }(probeInterval)
	probeInterval = 50 * time.Millisecond
	t.Setenv("GOVERBS_DEVICE", "soft0")
	var open opened
	defer func() { assert.NoError(t, open.Close()) }()
	peer, err := open.open(t.Context(), rpma.Local, "127.0.0.1:0")
	require.NoError(t, err)
	endpoint, err := peer.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	open.add(endpoint)
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		_, err := Send(ctx, file(t, "right").Name(), endpoint.Addr().String(), nothing)
		done <- err
	}()
	request, err := endpoint.NextConnRequest(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, request.Recv(nil, 0, 0, received))
	conn, err := request.Connect(nil)
	require.NoError(t, err)
	require.NoError(t, (&receiver{conn: conn}).confirmed(t.Context()))
	time.Sleep(5 * probeInterval)
	select {
	case err := <-done:
		require.Fail(t, "a silent receiver is still connected", err)
	default:
	}
	require.NoError(t, conn.Close())
	assert.ErrorContains(t, <-done, "connection to the receiver lost")
}

// TestInvalidSenders checks that invalid requests, offers that are too large, and unconfirmed offers neither stop a
// receiver nor allocate space.
func TestInvalidSenders(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir, refused := t.TempDir(), make(chan error, 10)
	name := filepath.Join(dir, "to")
	address, received := startReceiver(t, name, refused)
	var open opened
	defer func() { assert.NoError(t, open.Close()) }()
	peer, err := open.open(t.Context(), rpma.Remote, address)
	require.NoError(t, err)
	for _, text := range []string{"", "hello", "gvcp0001" + strings.Repeat("x", 40)} {
		_, err = peer.Connect(t.Context(), address, config, []byte(text))
		rejected := new(rpma.EventError)
		require.ErrorAs(t, err, &rejected)
		assert.Equal(t, rpma.Rejected, rejected.Event)
		assert.ErrorContains(t, <-refused, "not a request of goverbs cp")
	}
	_, err = open.dial(t.Context(), address, offer{size: 40 << 30})
	require.NoError(t, err)
	assert.ErrorContains(t, <-refused, "sender did not confirm its request")

	conn, err := connect(t.Context(), peer, address, offer{size: 40 << 30})
	require.NoError(t, err)
	async, err := conn.NewAsync(depth + 1)
	require.NoError(t, err)
	memory, err := peer.RegMR(make([]byte, longestAnswer), rpma.RecvDst)
	require.NoError(t, err)
	_, err = (&sender{offer: offer{size: 40 << 30}, conn: conn, async: async, memory: memory}).confirm(t.Context())
	assert.EqualError(t, err, `receiver refused the file: "file of 42949672960 bytes exceeds 1073741824 (--most)"`)
	assert.ErrorContains(t, <-refused, "file of 42949672960 bytes exceeds")
	require.NoError(t, conn.Close())
	require.NoError(t, memory.Close())

	_, err = Send(t.Context(), file(t, "right").Name(), address, nothing)
	require.NoError(t, err)
	require.NoError(t, <-received)
	have, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "right", string(have))
}

// TestTruncated checks that truncating a file during the copy is an error and not a fault.
func TestTruncated(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	defer func(d time.Duration) { probeInterval = d }(probeInterval)
	probeInterval = 50 * time.Millisecond
	dir, text := t.TempDir(), strings.Repeat("x", 20<<20)
	from := file(t, text)
	_, err := checksum(from, uint64(len(text))+1)
	assert.ErrorContains(t, err, "truncated")
	address, received := startReceiver(t, filepath.Join(dir, "to"), nil)
	var open opened
	s := offerText(t, &open, address, text)
	err = s.send(t.Context(), from, func(done, of uint64) { assert.NoError(t, os.Truncate(from.Name(), 5)) })
	assert.ErrorContains(t, err, "truncated")
	require.NoError(t, open.Close())
	require.Error(t, <-received)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestAnswers checks that the sender quotes the receiver's message.
func TestAnswers(t *testing.T) {
	_, err := parseAnswer([]byte(refusal+"\x1b[2J\xff"), 1)
	assert.EqualError(t, err, `receiver refused the file: "\x1b[2J\xff"`)
	for _, text := range []string{"", "hello", refusal[:7], acceptance[:7], acceptance, acceptance + "x",
		acceptance + strings.Repeat("\xff", rpma.MRDescriptorSize)} {
		_, err := parseAnswer([]byte(text), 1)
		assert.Error(t, err, text)
	}
	to, err := parseAnswer([]byte(acceptance), 0)
	assert.NoError(t, err)
	assert.Nil(t, to)
}
