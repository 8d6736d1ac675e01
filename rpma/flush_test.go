// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestPersistent checks that a flush for persistence needs the region's usage and the peer's configuration.
func TestPersistent(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		mr := remote(t, r.b.memory(64, WriteDst|FlushVisibility|FlushPersistent))
		visible := remote(t, r.b.memory(64, WriteDst|FlushVisibility))
		neither := remote(t, r.b.memory(64, WriteDst))
		c := r.a.conn
		assert.Equal(t, FlushVisibility|FlushPersistent, mr.FlushTypes())
		assert.Equal(t, FlushVisibility, visible.FlushTypes())
		rejected := func(to *RemoteMR, kind FlushType, reason string) {
			t.Helper()
			err := c.Flush(to, 0, 64, kind, Always, 0)
			assert.ErrorIs(t, err, ErrNotSupported)
			assert.ErrorIs(t, err, rdma.ErrNotSupported)
			assert.ErrorContains(t, err, reason)
		}
		rejected(mr, Persistent, "ApplyRemotePeerConfig")
		c.ApplyRemotePeerConfig(PeerConfig{})
		rejected(mr, Persistent, "ApplyRemotePeerConfig")
		config, err := ParsePeerConfig([]byte{1})
		require.NoError(t, err)
		c.ApplyRemotePeerConfig(config)
		require.NoError(t, c.Flush(mr, 0, 64, Persistent, Always, 1))
		r.a.done(1)
		require.NoError(t, c.Flush(mr, 0, 64, Visibility, Always, 2))
		r.a.done(2)
		rejected(visible, Persistent, "does not support flush")
		rejected(neither, Visibility, "does not support flush")
	})
}

// TestFlushOfEitherType checks that memory registered for one type of flush supports that type.
func TestFlushOfEitherType(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		r.a.conn.ApplyRemotePeerConfig(PeerConfig{DirectWriteToPmem: true})
		for to, usage := range map[FlushType]Usage{Visibility: FlushVisibility, Persistent: FlushPersistent} {
			remoteMR := remote(t, r.b.memory(64, WriteDst|usage))
			require.NoError(t, r.a.conn.Flush(remoteMR, 0, 64, to, Always, 1))
			r.a.done(1)
		}
	})
}

// TestFlushEverywhere checks that a flush succeeds for any range, even if 8 bytes from its start would exceed the
// region.
func TestFlushEverywhere(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		for _, size := range []int{1, 7, 8, 9, 100} {
			to := remote(t, r.b.memory(size, WriteDst|FlushVisibility))
			for offset := range uint64(size) + 1 {
				require.NoError(t, r.a.conn.Flush(to, offset, uint64(size)-offset, Visibility, Always, offset))
				r.a.done(offset)
			}
		}
	})
}

// TestFlushMismatch checks that a kind of flush that the peer does not permit fails with a hint that works.
func TestFlushMismatch(t *testing.T) {
	for name, c := range map[string]struct {
		a, b   PeerOptions
		advice string
		fix    func(o *options) Usage
	}{
		"native flush of memory for reads": {b: PeerOptions{ReadFlush: true}, advice: "PeerOptions.ReadFlush",
			fix: func(o *options) Usage { o.a.ReadFlush = true; return 0 }},
		"read of memory for native flush": {a: PeerOptions{ReadFlush: true}, advice: "add ReadSrc",
			fix: func(o *options) Usage { return ReadSrc }},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{a: c.a, b: c.b}
			r := connected(t, o)
			to := remote(t, r.b.memory(64, WriteDst|FlushVisibility))
			require.NoError(t, r.a.conn.Flush(to, 0, 64, Visibility, OnError, 7))
			wc := completion(t, r.a.conn.CQ())
			assert.Equal(t, ibv.WC_REM_ACCESS_ERR, wc.Status)
			err := r.a.conn.CompletionErr(&wc)
			assert.ErrorContains(t, err, c.advice)
			assert.ErrorContains(t, err, "flush of id 0x7")
			assert.ErrorIs(t, err, &rdma.CompletionError{Status: ibv.WC_REM_ACCESS_ERR})

			more := c.fix(&o)
			r = connected(t, o)
			to = remote(t, r.b.memory(64, WriteDst|FlushVisibility|more))
			require.NoError(t, r.a.conn.Flush(to, 0, 64, Visibility, Always, 7))
			r.a.done(7)
		})
	}
}

// TestOnlyLastFlushes checks that as many flush ids are kept as flushes can be outstanding.
func TestOnlyLastFlushes(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		to := remote(t, r.b.memory(64, FlushVisibility))
		const n = 3 * defaultQueueSize
		assert.False(t, r.a.conn.sends.wasFlush(0), "there was none")
		for id := range uint64(n) {
			require.NoError(t, r.a.conn.Flush(to, 0, 64, Visibility, Always, id))
			r.a.done(id)
		}
		for id := range uint64(n) {
			assert.Equal(t, id >= n-16, r.a.conn.sends.wasFlush(id), id)
		}
	})
}

// TestNotPersistentMemory checks that a device with native flush rejects other than persistent memory for
// FlushPersistent.
func TestNotPersistentMemory(t *testing.T) {
	r := newPair(t, options{soft: soft.Options{Devices: []soft.DeviceOptions{{}, {}}}, a: PeerOptions{ReadFlush: true}})
	_, err := r.b.peer.RegMR(make([]byte, 8), FlushPersistent)
	assert.ErrorIs(t, err, ErrProvider)
	assert.ErrorContains(t, err, "Peer.RegMR: ")
	assert.ErrorContains(t, err, "FlushPersistent; a software device accepts all with soft.DeviceOptions.Persistent")
	f, err := OpenFile(filepath.Join(t.TempDir(), "memory"), FileOptions{Size: 4096, AssumePersistent: true})
	require.NoError(t, err)
	_, err = r.b.peer.RegFile(f, f.FlushUsage())
	assert.ErrorIs(t, err, ErrProvider)
	assert.ErrorContains(t, err, "Peer.RegFile: ")
	require.NoError(t, f.Close())
	r.a.memory(8, FlushPersistent)
}

// TestAccess checks that each usage grants exactly the access that it needs.
func TestAccess(t *testing.T) {
	const local, remoteWrite, remoteRead = ibv.ACCESS_LOCAL_WRITE, ibv.ACCESS_REMOTE_WRITE, ibv.ACCESS_REMOTE_READ
	native, reads, iWARP := Peer{nativeFlush: true}, Peer{}, Peer{iWARP: true}
	for usage, want := range map[Usage][3]ibv.AccessFlags{
		ReadSrc:         {remoteRead, remoteRead, remoteRead},
		ReadDst:         {local, local, local | remoteWrite},
		WriteSrc:        {local, local, local},
		WriteDst:        {local | remoteWrite, local | remoteWrite, local | remoteWrite},
		SendSrc:         {},
		RecvDst:         {local, local, local},
		FlushVisibility: {ibv.ACCESS_FLUSH_GLOBAL, remoteRead, remoteRead},
		FlushPersistent: {ibv.ACCESS_FLUSH_PERSISTENT, remoteRead, remoteRead},
		FlushPersistent | WriteDst: {ibv.ACCESS_FLUSH_PERSISTENT | local | remoteWrite,
			remoteRead | local | remoteWrite, remoteRead | local | remoteWrite},
	} {
		assert.Equal(t, want, [3]ibv.AccessFlags{native.access(usage), reads.access(usage), iWARP.access(usage)}, usage)
	}
}

// TestCapabilityBits compares the bits that verbs.h does not define with the kernel's header. The package itself does
// not import that header's package for three numbers.
func TestCapabilityBits(t *testing.T) {
	assert.EqualValues(t, uapi.IB_UVERBS_DEVICE_FLUSH_GLOBAL, uint64(capFlushGlobal))
	assert.EqualValues(t, uapi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT, uint64(capFlushPersistent))
	assert.EqualValues(t, uapi.IB_UVERBS_DEVICE_ATOMIC_WRITE, uint64(capAtomicWrite))
}
