// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librpma"
	"github.com/goverbs/goverbs/generated/rpma"
	"github.com/goverbs/goverbs/runtime"
)

// Functions of the installed librpma that need no device.

var errNumbers = []rpma.Error{rpma.E_UNKNOWN, rpma.E_NOSUPP, rpma.E_PROVIDER, rpma.E_NOMEM, rpma.E_INVAL,
	rpma.E_NO_COMPLETION, rpma.E_NO_EVENT, rpma.E_AGAIN, rpma.E_SHARED_CHANNEL, rpma.E_NOT_SHARED_CHNL}

func TestRPMATexts(t *testing.T) {
	needLibraries(t)
	texts := map[string]rpma.Error{}
	for i, e := range errNumbers {
		assert.EqualValues(t, -100000-i, e)
		text, err := librpma.Err2Str(e)
		require.NoError(t, err)
		assert.NotEmpty(t, text)
		assert.NotContains(t, texts, text, "%v and %v", e, texts[text])
		texts[text] = e
	}
	unknown, err := librpma.Err2Str(-1)
	require.NoError(t, err)
	assert.Equal(t, rpma.E_UNKNOWN, texts[unknown], "unknown error number")
	assert.Equal(t, "RPMA_E_INVAL", rpma.E_INVAL.Error())

	for _, e := range []rpma.ConnEvent{rpma.CONN_UNDEFINED, rpma.CONN_ESTABLISHED, rpma.CONN_CLOSED, rpma.CONN_LOST,
		rpma.CONN_REJECTED, rpma.CONN_UNREACHABLE} {
		text, err := librpma.UtilsConnEvent2Str(e)
		require.NoError(t, err)
		assert.Contains(t, strings.ToUpper(text), strings.TrimPrefix(e.String(), "RPMA_CONN_"), "%v", e)
	}
}

// peerConfig parses the descriptor of a peer configuration with C.
func peerConfig(desc []byte) (directWrite bool, err error) {
	var cfg ibv.Ptr[rpma.PeerCfg]
	err = librpma.PeerCfgFromDescriptor(uintptr(unsafe.Pointer(unsafe.SliceData(desc))), uint64(len(desc)), &cfg)
	if err != nil {
		return false, err
	}
	defer librpma.PeerCfgDelete(&cfg)
	err = librpma.PeerCfgGetDirectWriteToPMem(cfg.Deref(), &directWrite)
	return directWrite, err
}

func TestRPMAPeerConfig(t *testing.T) {
	needLibraries(t)
	var cfg ibv.Ptr[rpma.PeerCfg]
	require.NoError(t, librpma.PeerCfgNew(&cfg))
	for _, want := range []bool{false, true, false} {
		require.NoError(t, librpma.PeerCfgSetDirectWriteToPMem(cfg.Deref(), want))
		got := !want
		require.NoError(t, librpma.PeerCfgGetDirectWriteToPMem(cfg.Deref(), &got))
		assert.Equal(t, want, got)
		size := ^uint64(0)
		require.NoError(t, librpma.PeerCfgGetDescriptorSize(cfg.Deref(), &size))
		require.EqualValues(t, 1, size)
		desc := []byte{0xaa, 0xbb}
		require.NoError(t, librpma.PeerCfgGetDescriptor(cfg.Deref(), uintptr(unsafe.Pointer(&desc[0]))))
		assert.Equal(t, byte(0xbb), desc[1], "a descriptor has one byte")
		got, err := peerConfig(desc[:1])
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	require.NoError(t, librpma.PeerCfgDelete(&cfg))
	assert.Zero(t, cfg, "C sets the address to nil")
	for _, desc := range [][]byte{nil, {}} {
		_, err := peerConfig(desc)
		assert.ErrorIs(t, err, rpma.E_INVAL)
	}
	assert.ErrorIs(t, librpma.PeerCfgNew(nil), rpma.E_INVAL)
	assert.ErrorIs(t, librpma.PeerCfgGetDescriptor(nil, 0), rpma.E_INVAL)
}

// region returns a memory region's descriptor: address, length, key and usage, little-endian.
func region(address, length uint64, key uint32, usage rpma.MRUsage) []byte {
	desc := binary.LittleEndian.AppendUint64(nil, address)
	desc = binary.LittleEndian.AppendUint64(desc, length)
	desc = binary.LittleEndian.AppendUint32(desc, key)
	return append(desc, byte(usage))
}

func TestRPMARemoteRegion(t *testing.T) {
	needLibraries(t)
	open := func(desc []byte) (mr ibv.Ptr[rpma.MRRemote], err error) {
		err = librpma.MRRemoteFromDescriptor(uintptr(unsafe.Pointer(unsafe.SliceData(desc))), uint64(len(desc)), &mr)
		return mr, err
	}
	const visible, persistent = rpma.MR_USAGE_FLUSH_TYPE_VISIBILITY, rpma.MR_USAGE_FLUSH_TYPE_PERSISTENT
	for _, usage := range []rpma.MRUsage{rpma.MR_USAGE_READ_SRC, visible, persistent, visible | persistent,
		rpma.MR_USAGE_WRITE_DST | persistent, 0xff} {
		desc := region(0x1122334455667788, 0x99aabbccdd, 0x12345678, usage)
		require.Len(t, desc, 21)
		mr, err := open(desc)
		require.NoError(t, err, "%v", usage)
		var size uint64
		require.NoError(t, librpma.MRRemoteGetSize(mr.Deref(), &size))
		assert.EqualValues(t, 0x99aabbccdd, size)
		flush := int32(-1)
		require.NoError(t, librpma.MRRemoteGetFlushType(mr.Deref(), &flush))
		assert.Equal(t, usage&(visible|persistent), rpma.MRUsage(flush))
		require.NoError(t, librpma.MRRemoteDelete(&mr))
		assert.Zero(t, mr)
	}
	complete := region(1<<63, 1, 1, rpma.MR_USAGE_READ_SRC)
	for n := range len(complete) {
		_, err := open(complete[:n])
		assert.ErrorIs(t, err, rpma.E_INVAL, "%d bytes", n)
	}
	mr, err := open(append(complete, 7))
	require.NoError(t, err, "C ignores everything after the first 21 bytes")
	require.NoError(t, librpma.MRRemoteDelete(&mr))
	_, err = open(region(1<<63, 1, 1, 0))
	assert.ErrorIs(t, err, rpma.E_INVAL, "no usage")
	_, err = open(nil)
	assert.ErrorIs(t, err, rpma.E_INVAL)
}

func TestRPMAConnectionConfig(t *testing.T) {
	needLibraries(t)
	var p ibv.Ptr[rpma.ConnCfg]
	require.NoError(t, librpma.ConnCfgNew(&p))
	cfg := p.Deref()
	var timeout int32
	require.NoError(t, librpma.ConnCfgGetTimeout(cfg, &timeout))
	assert.EqualValues(t, rpma.DEFAULT_TIMEOUT_MS, timeout)
	require.NoError(t, librpma.ConnCfgSetTimeout(cfg, 5))
	require.NoError(t, librpma.ConnCfgGetTimeout(cfg, &timeout))
	assert.EqualValues(t, 5, timeout)
	assert.ErrorIs(t, librpma.ConnCfgSetTimeout(cfg, -1), rpma.E_INVAL)
	for name, size := range map[string]struct {
		get   func(*rpma.ConnCfg, *uint32) error
		set   func(*rpma.ConnCfg, uint32) error
		first uint32
	}{
		"cq":  {librpma.ConnCfgGetCQSize, librpma.ConnCfgSetCQSize, 10},
		"rcq": {librpma.ConnCfgGetRCQSize, librpma.ConnCfgSetRCQSize, 0},
		"sq":  {librpma.ConnCfgGetSQSize, librpma.ConnCfgSetSQSize, 10},
		"rq":  {librpma.ConnCfgGetRQSize, librpma.ConnCfgSetRQSize, 10},
	} {
		n := ^uint32(0)
		require.NoError(t, size.get(cfg, &n), name)
		assert.Equal(t, size.first, n, name)
		require.NoError(t, size.set(cfg, 1234567), name)
		require.NoError(t, size.get(cfg, &n), name)
		assert.EqualValues(t, 1234567, n, name)
	}
	for _, want := range []bool{false, true, false} {
		if want {
			require.NoError(t, librpma.ConnCfgSetComplChannel(cfg, want))
		}
		shared := !want
		require.NoError(t, librpma.ConnCfgGetComplChannel(cfg, &shared))
		assert.Equal(t, want, shared)
		require.NoError(t, librpma.ConnCfgSetComplChannel(cfg, false))
	}
	srq := ibv.Ptr[rpma.SRQ](1)
	require.NoError(t, librpma.ConnCfgGetSRQ(cfg, &srq))
	assert.Zero(t, srq)
	require.NoError(t, librpma.ConnCfgDelete(&p))
	assert.Zero(t, p)

	var s ibv.Ptr[rpma.SRQCfg]
	require.NoError(t, librpma.SRQCfgNew(&s))
	for _, size := range []struct {
		get func(*rpma.SRQCfg, *uint32) error
		set func(*rpma.SRQCfg, uint32) error
	}{{librpma.SRQCfgGetRQSize, librpma.SRQCfgSetRQSize}, {librpma.SRQCfgGetRCQSize, librpma.SRQCfgSetRCQSize}} {
		var n uint32
		require.NoError(t, size.get(s.Deref(), &n))
		assert.EqualValues(t, 20, n)
		require.NoError(t, size.set(s.Deref(), 7))
		require.NoError(t, size.get(s.Deref(), &n))
		assert.EqualValues(t, 7, n)
	}
	require.NoError(t, librpma.SRQCfgDelete(&s))
}

// TestRPMAErrors checks that errors name the failed function and the library's error.
func TestRPMAErrors(t *testing.T) {
	needLibraries(t)
	err := librpma.UtilsGetIBVContext("", rpma.UTIL_IBV_CONTEXT_LOCAL, new(ibv.Ptr[ibv.Context]))
	assert.ErrorIs(t, err, rpma.E_INVAL, "no address")
	assert.NotErrorIs(t, err, rpma.E_NOMEM)
	var failed *runtime.CodeError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, "rpma_utils_get_ibv_context", failed.Function)
	assert.True(t, strings.HasPrefix(err.Error(), "rpma_utils_get_ibv_context: RPMA_E_INVAL"), err.Error())
	for name, err := range map[string]error{
		"read":                 librpma.Read(nil, nil, 0, nil, 0, 0, rpma.F_COMPLETION_ALWAYS, 0),
		"write":                librpma.Write(nil, nil, 0, nil, 0, 0, rpma.F_COMPLETION_ALWAYS, 0),
		"write with immediate": librpma.WriteWithImm(nil, nil, 0, nil, 0, 0, rpma.F_COMPLETION_ALWAYS, 1, 0),
		"atomic write":         librpma.AtomicWrite(nil, nil, 0, new([8]byte), rpma.F_COMPLETION_ALWAYS, 0),
		"flush":                librpma.Flush(nil, nil, 0, 0, rpma.FLUSH_TYPE_PERSISTENT, rpma.F_COMPLETION_ALWAYS, 0),
		"send":                 librpma.Send(nil, nil, 0, 0, rpma.F_COMPLETION_ALWAYS, 0),
		"send with immediate":  librpma.SendWithImm(nil, nil, 0, 0, rpma.F_COMPLETION_ALWAYS, 1, 0),
		"recv":                 librpma.Recv(nil, nil, 0, 0, 0),
		"completions":          librpma.CQGetWC(nil, 1, new(ibv.WC), new(int32)),
		"listen":               librpma.EPListen(nil, "127.0.0.1", "7204", new(ibv.Ptr[rpma.EP])),
		"event":                librpma.ConnNextEvent(nil, new(rpma.ConnEvent)),
	} {
		assert.ErrorIs(t, err, rpma.E_INVAL, name)
	}
}

// TestRPMAOfSoftwareDevice checks that C is not called with a software device.
func TestRPMAOfSoftwareDevice(t *testing.T) {
	needLibraries(t)
	context := object[ibv.Context](newSoftware(t))
	var peer ibv.Ptr[rpma.Peer]
	assert.ErrorIs(t, librpma.PeerNew(context, &peer), runtime.ErrNotSupported)
	assert.ErrorIs(t, librpma.UtilsIBVContextIsODPCapable(context, new(int32)), runtime.ErrNotSupported)
	assert.Zero(t, peer)
}

// TestRPMALog sets thresholds, and registers a Go function as log callback.
func TestRPMALog(t *testing.T) {
	needLibraries(t)
	var was rpma.LogLevel
	require.NoError(t, librpma.LogGetThreshold(rpma.LOG_THRESHOLD, &was))
	defer librpma.LogSetThreshold(rpma.LOG_THRESHOLD, was)
	for _, level := range []rpma.LogLevel{rpma.LOG_DISABLED, rpma.LOG_LEVEL_DEBUG} {
		require.NoError(t, librpma.LogSetThreshold(rpma.LOG_THRESHOLD, level))
		got := rpma.LogLevel(77)
		require.NoError(t, librpma.LogGetThreshold(rpma.LOG_THRESHOLD, &got))
		assert.Equal(t, level, got)
	}
	assert.ErrorIs(t, librpma.LogSetThreshold(rpma.LOG_THRESHOLD_MAX, rpma.LOG_LEVEL_INFO), rpma.E_INVAL)
	assert.ErrorIs(t, librpma.LogSetThreshold(rpma.LOG_THRESHOLD, rpma.LOG_LEVEL_DEBUG+1), rpma.E_INVAL)

	// C passes the arguments of its message in order to a variadic function.
	var output []string
	log := purego.NewCallback(func(level rpma.LogLevel, file uintptr, line int32, function, format uintptr, have,
		want int32) {
		output = append(output, fmt.Sprintf("%v %s %t %s %t %d %d", level, cString(file), line > 0, cString(function),
			strings.Count(cString(format), "%") == 2, have, want))
	})
	require.NoError(t, librpma.LogSetFunction(rpma.LogFunction(log)))
	defer func() {
		require.NoError(t, librpma.LogSetFunction(rpma.LogFunction(rpma.LOG_USE_DEFAULT_FUNCTION)))
	}()
	desc := make([]byte, 21)
	remote := new(ibv.Ptr[rpma.MRRemote])
	require.ErrorIs(t, librpma.MRRemoteFromDescriptor(uintptr(unsafe.Pointer(&desc[0])), 20, remote), rpma.E_INVAL)
	require.Len(t, output, 1)
	assert.Regexp(t, `^RPMA_LOG_LEVEL_ERROR \S*mr\.c true rpma_mr_remote_from_descriptor true 20 21$`, output[0])
	require.NoError(t, librpma.LogSetThreshold(rpma.LOG_THRESHOLD, rpma.LOG_DISABLED))
	require.ErrorIs(t, librpma.MRRemoteFromDescriptor(uintptr(unsafe.Pointer(&desc[0])), 20, remote), rpma.E_INVAL)
	assert.Len(t, output, 1, "no messages below the threshold")
}

// cString copies a C string.
func cString(address uintptr) string {
	if address == 0 {
		return "NULL"
	}
	first, n := *(**byte)(unsafe.Pointer(&address)), 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(first), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(first, n))
}
