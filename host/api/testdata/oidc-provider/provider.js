// An OpenID provider on loopback for a test: any name logs in, and a program gets a token for the audience "pawl". It prints its
// address as one line, and ends with its standard input.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const groups = { ann: ['pawl-admins'], bob: ['pawl-users', 'somewhere-else'], ci: ['pawl-users'] };
  const provider = new Provider(issuer, {
    clients: [
      { client_id: 'pawl', client_secret: 'web-secret', redirect_uris: [`${issuer}/done`], response_types: ['code'], grant_types: ['authorization_code'] },
      { client_id: 'other', client_secret: 'web-secret', redirect_uris: [`${issuer}/done`], response_types: ['code'], grant_types: ['authorization_code'] },
      { client_id: 'ci', client_secret: 'ci-secret', redirect_uris: [], response_types: [], grant_types: ['client_credentials'] },
    ],
    claims: { openid: ['sub', 'groups', 'org'] },
    conformIdTokenClaims: false, // the groups are in the token itself, and not at another address
    pkce: { required: () => false },
    async findAccount(_ctx, id) {
      return { accountId: id, claims: async () => ({ sub: id, org: 'demo', groups: groups[id] ?? [] }) };
    },
    extraTokenClaims: async (_ctx, token) => ({ org: 'demo', groups: groups[token.clientId] ?? [], client_kind: 'service' }),
    features: {
      devInteractions: { enabled: true },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        getResourceServerInfo: (_ctx, resource) => ({ scope: 'run', audience: resource === 'urn:pawl' ? 'pawl' : resource, accessTokenTTL: 300, accessTokenFormat: 'jwt' }),
      },
    },
  });
  server.on('request', (req, res) => {
    if (req.url.startsWith('/done')) {
      res.end('done');
      return;
    }
    provider.callback()(req, res);
  });
  console.log(issuer);
});
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
