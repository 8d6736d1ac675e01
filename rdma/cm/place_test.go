// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestFunctionsInDocComments: a doc comment of this package names each function of librdmacm's two headers.
func TestFunctionsInDocComments(t *testing.T) {
	read := func(pattern string) (all []byte) {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			all = append(all, text...)
		}
		return all
	}
	places := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^// C: (.*)$`).FindAllString(string(read("*.go")), -1) {
		for _, name := range regexp.MustCompile(`\brdma_\w+`).FindAllString(line, -1) {
			places[name] = true
		}
	}
	n := 0
	declaration := regexp.MustCompile(`(?m)^// C: .*?\b(rdma_\w+)\(.*\) \((?:rdma_cma|rdma_verbs)\.h\)`)
	for _, declared := range declaration.FindAllStringSubmatch(string(read("../../generated/librdmacm/*.go")), -1) {
		n++
		if name := declared[1]; name != "rdma_seterrno" { // sets C's errno, which Go does not use
			assert.True(t, places[name], "no doc comment names %s", name)
		}
	}
	assert.Greater(t, n, 60)
}

// TestSoftHelpersReject: helpers reject invalid arguments with EINVAL and a reason.
func TestSoftHelpersReject(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	s.connect()
	id := s.client
	long := make([]byte, id.QP().Cap().MaxInlineData+1)
	mr, err := id.RegMsgs(long)
	require.NoError(t, err)
	defer mr.Close()
	element := ibv.SGE{Addr: mr.Region().Address, Length: uint32(len(long)), LKey: mr.LKey()}
	for reason, err := range map[string]error{
		"inline bytes exceed the queue pair's maximum": id.PostSend(1, long, nil, ibv.SEND_INLINE),
		"inline":                    id.PostSendv(2, []ibv.SGE{element}, ibv.SEND_INLINE),
		"must be inline":            id.PostSend(3, long, nil, 0),
		"are not inside the region": id.PostSend(4, make([]byte, 4), mr, 0),
		"3 entries exceed the queue pair's maximum, 2": id.PostSendv(5, make([]ibv.SGE, 3), 0),
		"3 entries exceed the queue's maximum, 2":      id.PostRecvv(6, make([]ibv.SGE, 3)),
		"a receive needs a memory region":              id.PostRecv(7, long, nil),
		"a read needs a memory region":                 id.PostRead(8, long, nil, 0, 0, 0),
		"a datagram needs an address handle":           id.PostUDSend(9, nil, nil, 0, nil, 1),
	} {
		assert.ErrorContains(t, err, reason)
		assert.ErrorIs(t, err, syscall.EINVAL, reason)
	}
}

// TestSoftSharedReceiveQueueDestroyed: a queue pair created after the ID's shared receive queue was destroyed has its
// own receive queue.
func TestSoftSharedReceiveQueueDestroyed(t *testing.T) {
	s := newTestbed(t, rdmacm.PS_TCP)
	s.listen(1)
	id := s.resolved()
	srq, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, srq.Close())
	s.withQP(id)
	mr, err := id.RegMsgs(make([]byte, 8))
	keep(t, mr, err)
	assert.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, id.QP().Close())
}
