// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rpma"
)

// TestSenderWritesOn: what a sender writes while the receiver compares does not come into a file that is stored.
func TestSenderWritesOn(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	to, want := filepath.Join(t.TempDir(), "to"), bytes.Repeat([]byte("right"), 4<<20)
	from := filepath.Join(t.TempDir(), "from")
	require.NoError(t, os.WriteFile(from, want, 0o600))
	at, received := make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := Receive(t.Context(), "127.0.0.1:0", to, 1<<30, func(address string) { at <- address })
		received <- err
	}()
	address := <-at
	var open opened
	defer func() { assert.NoError(t, open.Close()) }()
	peer, err := open.open(t.Context(), rpma.Remote, address)
	require.NoError(t, err)
	source, err := mapFile(from)
	require.NoError(t, err)
	open.add(source)
	mr, err := source.register(peer)
	require.NoError(t, err)
	open.add(mr)
	request, err := peer.NewConnRequest(t.Context(), address, config)
	require.NoError(t, err)
	o := offer{uint64(len(want)), sha256.Sum256(want)}
	conn, err := request.Connect(o.marshal())
	require.NoError(t, err)
	open.add(conn)
	require.NoError(t, conn.WaitEstablished(t.Context()))
	remote, err := rpma.ParseRemoteMR(conn.PrivateData()[:rpma.MRDescriptorSize])
	require.NoError(t, err)
	async, err := conn.NewAsync(depth + 1)
	require.NoError(t, err)
	require.NoError(t, writeAll(t.Context(), async, remote, mr, o.size, func(done, of uint64) {}))
	_, err = async.Recv(nil, 0, 0)
	require.NoError(t, err)
	_, err = async.SendWithImm(nil, 0, 0, arrived)
	require.NoError(t, err)
	for range 5 { // until the connection breaks
		time.Sleep(3 * time.Millisecond)
		_, _ = async.Write(remote, 0, mr, 1, 1)
	}
	failed := <-received
	have, err := os.ReadFile(to)
	if failed != nil && errors.Is(err, os.ErrNotExist) {
		return // a write came before the comparison
	}
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, have), "%v", failed)
}

// TestUnknownAnswer: an answer that means nothing is no success.
func TestUnknownAnswer(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	from := filepath.Join(t.TempDir(), "from")
	require.NoError(t, os.WriteFile(from, nil, 0o600))
	var open opened
	defer func() { assert.NoError(t, open.Close()) }()
	peer, err := open.open(t.Context(), rpma.Local, "127.0.0.1:0")
	require.NoError(t, err)
	endpoint, err := peer.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	open.add(endpoint)
	sent := make(chan error, 1)
	go func() {
		_, err := Send(t.Context(), from, endpoint.Addr().String(), func(done, of uint64) {})
		sent <- err
	}()
	request, err := endpoint.NextConnRequest(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, request.Recv(nil, 0, 0, 0))
	conn, err := request.Connect(nil)
	require.NoError(t, err)
	open.add(conn)
	require.NoError(t, conn.WaitEstablished(t.Context()))
	require.NoError(t, completion(t.Context(), conn))
	require.NoError(t, conn.SendWithImm(nil, 0, 0, rpma.Always, 7, 0))
	assert.ErrorContains(t, <-sent, "the receiver answers 7")
}

// TestSenderGone: a receiver notices that a sender has gone without a word.
func TestSenderGone(t *testing.T) {
	defer func(d time.Duration) { quiet = d }(quiet)
	quiet = 50 * time.Millisecond
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir := t.TempDir()
	at, received := make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := Receive(t.Context(), "127.0.0.1:0", filepath.Join(dir, "to"), 1<<30, func(address string) {
			at <- address
		})
		received <- err
	}()
	var open opened
	address := <-at
	peer, err := open.open(t.Context(), rpma.Remote, address)
	require.NoError(t, err)
	request, err := peer.NewConnRequest(t.Context(), address, config)
	require.NoError(t, err)
	o := offer{5, sha256.Sum256([]byte("right"))}
	conn, err := request.Connect(o.marshal())
	require.NoError(t, err)
	open.add(conn)
	require.NoError(t, conn.WaitEstablished(t.Context()))
	time.Sleep(5 * quiet)
	select {
	case err := <-received:
		require.Fail(t, "a sender that says nothing is there", err)
	default:
	}
	require.NoError(t, open.Close())
	assert.ErrorContains(t, <-received, "the sender has gone")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestRefusal: what a receiver says is printed, and not believed to be printable.
func TestRefusal(t *testing.T) {
	assert.NoError(t, refused(nil))
	assert.NoError(t, refused(make([]byte, longestAnswer)))
	padded := append(refuse("no room"), make([]byte, 100)...)
	assert.EqualError(t, refused(padded), "the receiver refuses the file: no room")
	assert.EqualError(t, refused([]byte(refusal+"\x1b[2J\xff")), `the receiver refuses the file: \x1b[2J\xff`)
	assert.Len(t, refuse(strings.Repeat("x", 1000)), longestAnswer)
}

// TestStrangers: requests without an offer, and one that its sender never confirms, do not end the wait for a file.
func TestStrangers(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(t, os.WriteFile(from, []byte("right"), 0o600))
	at, received := make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := Receive(t.Context(), "127.0.0.1:0", to, 1<<30, func(address string) { at <- address })
		received <- err
	}()
	address := <-at
	good := offer{5, sha256.Sum256([]byte("right"))}
	for i, private := range [][]byte{nil, []byte("hello"), good.marshal()} {
		id, err := cm.CreateID(rdmacm.PS_TCP)
		require.NoError(t, err)
		defer id.Close()
		require.NoError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(address), time.Second))
		require.NoError(t, id.ResolveRoute(t.Context(), time.Second))
		err = id.Connect(t.Context(), &rdmacm.ConnParam{QPNum: 99}, private) // and no Establish
		assert.Equal(t, i < 2, err != nil)
	}
	_, err := Send(t.Context(), from, address, func(done, of uint64) {})
	require.NoError(t, err)
	require.NoError(t, <-received)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 2)
}
