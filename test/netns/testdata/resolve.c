/* Looks the names of its arguments up as any program does, and prints the first IPv4 address of
 * each. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *list, *a;
		int err = getaddrinfo(argv[i], 0, &hints, &list);
		if (err) {
			printf("%s: %s\n", argv[i], gai_strerror(err));
			return 1;
		}
		for (a = list; a && a->ai_family != AF_INET; a = a->ai_next)
			;
		char text[INET_ADDRSTRLEN] = "none";
		if (a)
			inet_ntop(AF_INET, &((struct sockaddr_in *)a->ai_addr)->sin_addr, text, sizeof text);
		printf("%s ", text);
		freeaddrinfo(list);
	}
	return 0;
}
