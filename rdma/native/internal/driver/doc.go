// SPDX-License-Identifier: BSD-2-Clause

// Package driver is the seam between package native and the kernel drivers that it supports.
//
// Package native checks the calls of programs, and sends the commands of the kernel's core (uverbs). A driver adds its
// private part to commands that create objects, and implements the data path of the queues: it posts, polls and arms.
// Each driver is a package.
package driver
