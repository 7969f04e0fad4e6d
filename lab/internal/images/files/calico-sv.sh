#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What confd asks runit for in Calico's own image: sv hup bird.
kill -HUP "$(cat "/run/$2.pid")"
