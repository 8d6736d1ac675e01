// SPDX-License-Identifier: BSD-2-Clause

package transport

// Receiver counts the packets that a queue pair receives.
type Receiver struct {
	Expects uint32 // packet sequence number that is to come next
	Count   uint32 // of messages that were carried out (MSN), 24 bits
	told    bool   // the sender was told that a packet is missing, or to send again later

	atomics []atomic // the last ones, so that the answer to one can be given again
	oldest  int
}

type atomic struct {
	psn   uint32
	found uint64
}

// Arrival is what a packet is to a receiver.
type Arrival uint8

const (
	Expected Arrival = iota // the next one
	Repeated                // it came before
	Gap                     // one before it is missing, of which the sender is to be told
	Ignored                 // one before it is missing, of which the sender was told
)

// Arrives says what a packet is.
func (r *Receiver) Arrives(psn uint32) Arrival {
	switch d := Distance(psn, r.Expects); {
	case d < 0: // the sender has gone back: if a packet is missing still, it did not hear of it
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

// Refused notes that the sender is to send the expected packet again: what comes behind it is not answered until then.
func (r *Receiver) Refused() { r.told = true }

// Took notes that the expected packet was carried out, with so many sequence numbers. Last says that a message ends
// with it.
func (r *Receiver) Took(packets uint32, last bool) {
	r.Expects, r.told = Next(r.Expects, packets), false
	if last {
		r.Count = (r.Count + 1) & psnMask
	}
}

// Keep notes what an atomic found. The receiver keeps the last so many.
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

// Found is what an atomic found that was carried out before, if the receiver has kept it.
func (r *Receiver) Found(psn uint32) (found uint64, ok bool) {
	for _, a := range r.atomics {
		if a.psn == psn {
			return a.found, true
		}
	}
	return 0, false
}

// Reset begins with a packet sequence number.
func (r *Receiver) Reset(psn uint32) { *r = Receiver{Expects: psn, atomics: r.atomics[:0]} }
