/* SPDX-License-Identifier: Apache-2.0 */
/* The process that holds a pod's namespaces open: it waits to be told to end, and
 * buries the processes that the pod's containers leave to it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	while (sigwait(&set, &sig) == 0) {
		if (sig != SIGCHLD)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	return 1;
}
