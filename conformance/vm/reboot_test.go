// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// TestFastClock checks that a guest with a fast clock is killed as soon as it is ready, if it may boot again.
func TestFastClock(t *testing.T) {
	for name, c := range map[string]struct {
		again        bool
		guest        float64
		own          time.Duration
		ends, isFast bool
	}{
		"good":                   {true, 3, 3 * time.Second, false, false},
		"waited for a processor": {true, 3, 30 * time.Second, false, false},
		"late message":           {true, 3, 2 * time.Second, false, false},
		"fast":                   {true, 9, 3 * time.Second, true, true},
		"fast, last boot":        {false, 9, 3 * time.Second, false, true},
		"immediately ready":      {true, 0.1, time.Millisecond, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ended := false
			w := &watch{guest: &Guest{mayBootAgain: c.again}, began: time.Now(), stop: func() { ended = true }}
			w.take(wire.Message{Kind: wire.Boot, Uptime: 5})
			w.bootAt = w.bootAt.Add(-c.own)
			w.take(wire.Message{Kind: wire.Ready, Uptime: 5 + c.guest})
			if w.timer != nil {
				w.timer.Stop()
			}
			assert.Equal(t, c.ends, ended)
			assert.Equal(t, c.ends, w.saw.fastClock)
			assert.Equal(t, !c.ends, w.saw.ready)
			assert.Equal(t, c.isFast, clockIsFast(c.guest, c.own))
		})
	}
}

// TestBootTimeout checks that the boot of the kernel and init have separate time limits, since the kernel takes most of
// the time on a busy machine.
func TestBootTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		w := &watch{guest: &Guest{}, began: time.Now(), stop: func() { ended = true }}
		w.bound(bootTime)
		time.Sleep(bootTime - time.Second)
		w.take(wire.Message{Kind: wire.Boot})
		time.Sleep(bootTime - time.Second)
		assert.False(t, ended)
		time.Sleep(2 * time.Second)
		assert.True(t, ended)
		assert.True(t, w.saw.timedOut)
	})
}

// TestKernelBreaksEarly checks which guests are booted again: those whose kernel never reaches init, or crashes before
// it runs a program. If it crashes later, the results up to then are reported.
func TestKernelBreaksEarly(t *testing.T) {
	const int3 = "[    1.413117] Oops: int3: 0000 [#2] SMP NOPTI\n[    1.413226] RIP: 0010:sched_clock_cpu+0x9/0x230\n"
	early := &watch{guest: &Guest{}, began: time.Now(), stop: func() {}, saw: observed{console: int3}}
	assert.True(t, early.saw.brokeEarly(classify(early.saw).Kind))
	early.take(wire.Message{Kind: wire.Boot})
	assert.True(t, early.saw.brokeEarly(classify(early.saw).Kind), "init loads modules")
	early.saw.ready = true
	assert.False(t, early.saw.brokeEarly(classify(early.saw).Kind))
	timer := observed{console: "[    0.040000] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot " +
		"with apic=debug\n"}
	assert.True(t, timer.brokeEarly(classify(timer).Kind))
	noInit := observed{console: "[    1.1] Kernel panic - not syncing: No working init found.\n"}
	assert.False(t, noInit.brokeEarly(classify(noInit).Kind), "would fail again")
	still := observed{console: "[    0.2] x2apic enabled\n", timedOut: true}
	assert.True(t, still.brokeEarly(classify(still).Kind), "the guest hung")
	still.booted = true
	assert.False(t, still.brokeEarly(classify(still).Kind), "init ran and reports its own failures")
	stopped := observed{console: "[    0.2] x2apic enabled\n"}
	assert.True(t, stopped.brokeEarly(classify(stopped).Kind), "the guest stopped without an error")
	stopped.emulator = "qemu-system-x86_64: could not open the kernel"
	assert.False(t, stopped.brokeEarly(classify(stopped).Kind), "QEMU would fail again")
	init := observed{console: "[    2.1] x\n", booted: true, failed: "loading rdma_rxe: no such file"}
	assert.False(t, init.brokeEarly(classify(init).Kind), "init would fail again")
	memory := observed{console: "[    0.5] Initramfs unpacking failed: write error\n"}
	assert.False(t, memory.brokeEarly(classify(memory).Kind))
}
