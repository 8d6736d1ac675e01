// SPDX-License-Identifier: BSD-2-Clause

// Package wq has the work queues: batches of work requests, the queues that they are posted to, the queues that their
// completions are polled from, the accounting and the checks between, and programs of the extended verbs. It knows
// queues of C and no object of package rdma, which gives its types to users by aliases.
//
// What users may do with a queue are its methods. What only its owner may do, an object of package rdma, are functions:
// see owner.go.
package wq
