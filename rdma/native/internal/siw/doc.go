// SPDX-License-Identifier: BSD-2-Clause

// Package siw is the driver for Soft-iWARP.
//
// Its queues are rings without indexes: the flag SIW_WQE_VALID of an element is set by the side that fills it in, and
// cleared by the side that has read it. Both sides count elements. A doorbell, which is a post of no requests, wakes the
// kernel; events are requested by a store in the memory of the completion queue.
//
// Queue pairs are of type RC. The connection manager connects them.
package siw
