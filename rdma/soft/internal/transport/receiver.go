// SPDX-License-Identifier: BSD-2-Clause

package transport

// Receiver tracks the packets that a queue pair receives.
type Receiver struct {
	Expects uint32 // next expected PSN
	Count   uint32 // MSN: executed messages, 24 bits
	told    bool   // a NAK for a missing packet, or an RNR NAK, was sent

	atomics []atomic // results of recent atomics, for repeated requests
	oldest  int
}

type atomic struct {
	psn   uint32
	found uint64
}

// Arrival classifies a packet.
type Arrival uint8

const (
	Expected Arrival = iota // the next packet
	Repeated                // received before
	Gap                     // after a missing packet; send a NAK
	Ignored                 // after a missing packet, for which a NAK was sent
)

// Arrives classifies a packet.
func (r *Receiver) Arrives(psn uint32) Arrival {
	switch d := Distance(psn, r.Expects); {
	case d < 0: // the sender went back: if a packet is still missing, the NAK was lost
		r.told = false
		return Repeated
	case d > 0 && r.told:
		return Ignored
	case d > 0:
		r.told = true
		return Gap
	}
	return Expected
}

// Refused records that the expected packet was rejected and has to be retransmitted. Later packets are ignored until
// then.
func (r *Receiver) Refused() { r.told = true }

// Took records that the expected packet was executed, with its number of sequence numbers. last reports the end of a
// message.
func (r *Receiver) Took(packets uint32, last bool) {
	r.Expects, r.told = Next(r.Expects, packets), false
	if last {
		r.Count = (r.Count + 1) & psnMask
	}
}

// Keep records the result of an atomic. The receiver keeps the last most of them.
func (r *Receiver) Keep(psn uint32, found uint64, most int) {
	if len(r.atomics) < most {
		r.atomics = append(r.atomics, atomic{psn, found})
		return
	}
	if r.oldest >= len(r.atomics) {
		r.oldest = 0
	}
	r.atomics[r.oldest] = atomic{psn, found}
	r.oldest++
}

// Found returns the result of an earlier atomic, if it was kept.
func (r *Receiver) Found(psn uint32) (found uint64, ok bool) {
	for _, a := range r.atomics {
		if a.psn == psn {
			return a.found, true
		}
	}
	return 0, false
}

// Reset starts with a PSN.
func (r *Receiver) Reset(psn uint32) { *r = Receiver{Expects: psn, atomics: r.atomics[:0]} }
