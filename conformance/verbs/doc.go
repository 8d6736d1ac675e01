// SPDX-License-Identifier: BSD-2-Clause

// Package verbs proves the packages of functions: that every function is there, answers without a library, and does
// with one what it says.
package verbs
