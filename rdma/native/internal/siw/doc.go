// SPDX-License-Identifier: BSD-2-Clause

// Package siw is the driver for Soft-iWARP.
//
// Its queues are rings without indexes: the side that fills in an element sets its flag SIW_WQE_VALID, and the side
// that has read it clears the flag. Both sides count elements. A doorbell, which is a post of no requests, wakes the kernel.
// A store in the memory of the completion queue requests an event.
//
// Queue pairs are of type RC. The connection manager connects them.
package siw
